"""
# Send coefficients instead of models

**For wireless researchers.** With shared directions, a device transmits H b2 numbers per round instead of d. The horizontal axis
counts the uses of the channel.
"""

import matplotlib.pyplot as plt

import fedzo
from fedzo.problems import softmax

problem = softmax(devices=20)
own = fedzo.FedZO(learning_rate=0.001, local_steps=5, participants=20)
shared = fedzo.FedZO(learning_rate=0.001, local_steps=5, participants=20, shared_directions=True)
links = {
    "models": (own, fedzo.AirComp(snr_db=0.0)),
    "coefficients": (shared, fedzo.AirCompSeeds(snr_db=0.0)),
}
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for (name, (algorithm, uplink)), colour in zip(links.items(), ("#0072B2", "#D55E00")):
    result = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, rounds=40, evaluate_every=2
    )
    history = result.history[1:]  # a logarithmic axis has no zero
    line = (
        [record["channel_uses"] for record in history],
        [record["train_loss"] for record in history],
    )
    axes.semilogx(
        *line, color=colour, label=f"{name}: {result.channel_uses // 40:,} uses per round"
    )
axes.set(xlabel="channel uses", ylabel="training loss, all devices", title="Over the air at 0 dB")
axes.legend(loc="lower center")
