"""The paper's theory as a tool: guarantees for given constants, and how to measure the constants.

Bounds, the choices of the corollaries, and estimates of the constants, by their equation numbers.
May import: algorithms and the rooms below it.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
