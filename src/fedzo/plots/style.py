"""How curves are told apart, and what numbers are called, in every picture."""

from __future__ import annotations

# Okabe & Ito's colours: told apart by the colour-blind too, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_NAMES = {
    "round": "communication round",
    "train_loss": "training loss, all devices",
    "test_accuracy": "test accuracy",
    "attack_success": "attack success rate",
    "heldout_success": "success on images held out",
    "distortion_l2_mean": "mean distortion, L2",
    "queries": "queries, all devices",
    "uplink_bytes": "bytes sent up, all devices",
    "downlink_bytes": "bytes sent down, all devices",
    "optimality_gap": "f(x) - f*",
    "gradient_norm_squared": "|∇f(x)|²",
    "noise_to_update": "receiver's noise over the update",
    "energy": "energy so far, in budgets of a round",
    "energy_max": "largest energy of a device, of its budget",
    "participants": "devices in the round",
}


def name(key: str) -> str:
    """Return what a key of a history is called on an axis.

    >>> name("train_loss"), name("my_own")
    ('training loss, all devices', 'my own')
    """
    return _NAMES.get(key, key.replace("_", " "))
