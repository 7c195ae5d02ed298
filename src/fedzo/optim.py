"""Optimizers for torch's own training loops, from losses alone.

>>> import torch
>>> from fedzo.optim import ZO
>>> module = torch.nn.Linear(3, 1)
>>> optimizer = ZO(module.parameters(), lr=0.1)
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub("fedzo", __file__)
