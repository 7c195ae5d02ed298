"""
# Aggregate over the air

**For wireless researchers.** All devices transmit at once, and the channel adds their updates up, with noise. The noise matters at
a low signal-to-noise ratio.
"""

import matplotlib.pyplot as plt

import fedzo
from fedzo.problems import softmax

problem = softmax(devices=20)
algorithm = fedzo.FedZO(learning_rate=0.001, local_steps=5, participants=20)
uplinks = {
    "ideal": fedzo.Ideal(),
    "-5 dB": fedzo.AirComp(snr_db=-5.0),
    "-20 dB": fedzo.AirComp(snr_db=-20.0),
}
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for (name, uplink), colour in zip(uplinks.items(), ("#0072B2", "#D55E00", "#009E73")):
    history = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, rounds=40, evaluate_every=4
    ).history
    line = [record["round"] for record in history], [record["train_loss"] for record in history]
    axes.plot(*line, color=colour, label=name)
axes.set(
    xlabel="round",
    ylabel="training loss, all devices",
    title="Softmax regression over a fading channel",
)
axes.legend()
