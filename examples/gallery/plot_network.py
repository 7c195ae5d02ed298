"""
# Train a torch module from forward passes

**For network trainers.** No gradient and no activation is stored: a device evaluates the loss at a few points and sends their
coefficients, a few hundred bytes.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import fedzo

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def loss(module, batch):
    """Return the loss of each sample."""
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


held = [(inputs[i:1500:5], targets[i:1500:5]) for i in range(5)]  # five devices

problem = fedzo.TorchProblem(module, loss, held, evaluation_batch=512)
algorithm = fedzo.FedZO(learning_rate="auto", local_steps=5, directions=20)
result = fedzo.minimize(
    problem, algorithm=algorithm, uplink=fedzo.Seeds(), rounds=30, evaluate_every=5
)
module.load_state_dict(result.state_dict())
accuracy = (module(inputs[1500:]).argmax(1) == targets[1500:]).float().mean()
print(
    f"accuracy on 297 held-out images {accuracy:.1%}, {result.uplink_bytes // 150:,} bytes per device and round"
)

# %%
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
line = (
    [record["round"] for record in result.history],
    [record["train_loss"] for record in result.history],
)
axes.plot(*line, color="#0072B2")
axes.set(
    xlabel="round",
    ylabel="training loss, all devices",
    title=f"{problem.dim:,} weights, forward passes only",
)
