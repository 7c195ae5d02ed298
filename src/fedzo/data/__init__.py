"""Data sets: list them, load them, and split their samples among devices.

The public names, listed in ``__init__.pyi``, are imported when they are first used. May import:
core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
