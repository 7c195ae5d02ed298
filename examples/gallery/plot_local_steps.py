"""
# Local steps save rounds

**For researchers.** The paper's softmax experiment: with more local steps H, a device computes more and sends less often.
"""

import matplotlib.pyplot as plt

import fedzo
from fedzo.problems import softmax

problem = softmax(devices=20)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.5), sharey=True, layout="constrained")
for steps, colour in ((1, "#0072B2"), (5, "#D55E00"), (20, "#009E73")):
    algorithm = fedzo.FedZO(learning_rate=0.001, local_steps=steps, participants=10)
    history = fedzo.minimize(problem, algorithm=algorithm, rounds=30, evaluate_every=3).history
    for axis, key, unit in ((axes[0], "round", 1), (axes[1], "queries", 1e6)):
        line = (
            [record[key] / unit for record in history],
            [record["train_loss"] for record in history],
        )
        axis.plot(*line, color=colour, label=f"H = {steps}")
axes[0].set(xlabel="round", ylabel="training loss, all devices", title="Per round")
axes[1].set(xlabel="queries, millions", title="Per query")
axes[0].legend()

# %%
# A curve that is lower on the left and not on the right trades queries for communication.
