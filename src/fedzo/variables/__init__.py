"""Changes of variables between the free vector of an optimiser and the values of a problem.

Bounds, scales, search spaces of hyper-parameters and perturbations of inputs. May import: core.
"""
