r"""Server optimizers: the server's rule for the mean update, :class:`Mean` for the paper's.

>>> import fedzo
>>> from fedzo.server import Adam
>>> fedzo.FedZO(local_steps=1, server=Adam(learning_rate=0.01)).server.beta1
0.9
"""

from fedzo.algorithms.server import *  # noqa: F403
from fedzo.algorithms.server import __all__


def __dir__() -> list[str]:
    return __all__
