"""Changes of variables between what an optimiser moves and what a person means.

Bounds, search spaces of hyper-parameters and perturbations of inputs: each decodes the optimiser's
free vector and encodes a start. May import: core.
"""
