"""The parts of a radio link: channels, power control and the radio with its units.

Each is a small frozen dataclass. A configuration names it by a word, ``channel = "rician"``, by a
table, ``channel = {name = "rician", factor = 5.0}``, or as ``module:Class`` for a custom one.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
