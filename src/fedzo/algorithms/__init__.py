"""The algorithms, one page each, and the server optimizers.

A round of an algorithm yields tasks and is sent replies. An algorithm knows nothing of threads,
files, progress or Flower. May import: uplinks and core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
