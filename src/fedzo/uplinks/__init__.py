"""Which devices take part in a round, and what the server receives of their updates.

With ``ideal`` it receives every update, with ``aircomp`` a noisy sum over the air, with ``seeds``
coefficients of directions. ``robust`` and ``robust_seeds`` tolerate a minority of bad devices. May
import: core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
