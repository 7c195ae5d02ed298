"""Random numbers as functions of their address: (seed, stream, round, device, step).

Custom algorithms and uplinks draw with :class:`Draws`, on one of the streams of :class:`Stream`.
A run then stays the same with any number of workers and after a resume.

Examples
--------
>>> from fedzo.random import Draws, Stream
>>> at = Draws(seed=1, stream=Stream.CHANNEL, round=7)
>>> bool((at.normals(3) == Draws(1, Stream.CHANNEL, 7).normals(3)).all())
True
"""

from fedzo.core.random import Draws, Stream

__all__ = ["Draws", "Stream"]


def __dir__() -> list[str]:
    return __all__
