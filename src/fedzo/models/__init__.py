"""Black boxes to query: each takes a batch of inputs, returns scores and counts the queries.

The public names, listed in ``__init__.pyi``, are imported when they are first used. The library of
a kind of model (ONNX Runtime, torch) is imported when such a model is made. May import: data, core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
