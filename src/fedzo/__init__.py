"""Federated optimisation from loss values only.

``import fedzo`` is quick: the public names, listed in ``__init__.pyi``, are imported from their
rooms when they are first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
