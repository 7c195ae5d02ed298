"""One perturbation against a model behind an HTTP endpoint, on a budget of queries.

python examples/serve_onnx.py src/fedzo/models/files/cifar10-resnet8.onnx 8000
python examples/attack_http.py http://127.0.0.1:8000
"""

import sys

import numpy as np

import fedzo
from fedzo import data
from fedzo.models import HttpModel

model = HttpModel(
    sys.argv[1], "cifar10-resnet8", outputs="logits", max_batch=64, max_queries=50_000
)
deer = data.load("cifar10-deer-mini")
devices = np.array_split(deer.train_inputs / 255, 10)
others, label = deer.test_inputs / 255, deer.classes.index("deer")

attack = fedzo.UniversalAttack(model, eps=8 / 255)
attack.fit(devices, label, held_out=(others, label))

best = max(attack.result.history, key=lambda record: record["attack_success"])
print(f"{attack.result.message}: {attack.queries:,} queries")
print(f"success {best['attack_success']:.0%}, on held-out images {best['heldout_success']:.0%}")
print(f"no pixel moved by more than {255 * attack.distortion.linf_max:.0f} of 255 levels")
attack.save("deer.npz")
