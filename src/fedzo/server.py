r"""Server optimizers: the server's rule for the mean update, :class:`Mean` for the paper's.

>>> import fedzo
>>> from fedzo.server import Adam
>>> fedzo.FedZO(local_steps=1, server=Adam(learning_rate=0.01)).server.beta1
0.9
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub("fedzo", __file__)
