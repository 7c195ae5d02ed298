"""The universal adversarial perturbation of the paper, section V-A: problem, evaluation, report."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
