"""Black-box searches across a federation, each a generator of tasks.

May import: algorithms.base, uplinks and core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
