r"""Server optimizers: the server's rule for the mean update.

The paper's server adds it, :math:`x^{t+1} = x^t + \Delta^t` (:class:`Mean`). Others use it as a
gradient estimate, as optax's optimizers do: a pure function of the state, the model and the update.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
