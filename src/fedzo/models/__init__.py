"""Black boxes to query: a batch of inputs in, scores out, and every answer counted.

A model knows nothing of optimisation. The public names, listed in ``__init__.pyi``, are imported
when they are first used, and what a kind of model needs (ONNX Runtime, torch) when one is made.
May import: core.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
