"""Black boxes to query: a batch of inputs in, scores out, and every answer counted.

Each name is fetched from its module when it is first used, and what a kind of model needs is
imported when one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedzo.lazily import fetched

if TYPE_CHECKING:
    from fedzo.models.base import Model
    from fedzo.models.function import FunctionModel
    from fedzo.models.http import HttpModel
    from fedzo.models.loading import card, load, shipped
    from fedzo.models.onnx import OnnxModel
    from fedzo.models.sklearn import SklearnModel
    from fedzo.models.torch import TorchModel

_HOME = {
    "FunctionModel": "fedzo.models.function",
    "HttpModel": "fedzo.models.http",
    "Model": "fedzo.models.base",
    "OnnxModel": "fedzo.models.onnx",
    "SklearnModel": "fedzo.models.sklearn",
    "TorchModel": "fedzo.models.torch",
    "card": "fedzo.models.loading",
    "load": "fedzo.models.loading",
    "shipped": "fedzo.models.loading",
}

__all__ = [
    "FunctionModel",
    "HttpModel",
    "Model",
    "OnnxModel",
    "SklearnModel",
    "TorchModel",
    "card",
    "load",
    "shipped",
]


__getattr__ = fetched(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
