"""A run from its first query to its last file.

The call ``minimize``, its options, the loop over rounds, the numbers in place of "auto", the
result, the run folder, the callbacks, and the registry of components by name. May import: plots,
theory, algorithms, uplinks, problems, variables and core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
