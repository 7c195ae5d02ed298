"""Load a model by its specification in a configuration; list the models that ship with fedzo."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedzo.core.importing import import_object
from fedzo.errors import InvalidValue, UsageError, check_choice, nearest, one_of, require
from fedzo.models.base import Common, Model

KINDS = ("onnx", "http", "torch", "sklearn", "function", "own")
_FILES = Path(__file__).parent / "files"


def shipped() -> tuple[str, ...]:
    """Return the names of the models that ship with fedzo.

    Examples
    --------
    >>> all(card(name) for name in shipped())
    True
    """
    return tuple(sorted(path.stem for path in _FILES.glob("*.onnx")))


def card(name: str) -> dict[str, Any]:
    """Return the description of a shipped model: its data, its training and its accuracy.

    Examples
    --------
    >>> card("resnet")
    Traceback (most recent call last):
        ...
    fedzo.errors.InvalidValue: model = 'resnet': must be ...
    """
    check_choice("model", name, shipped())
    content: dict[str, Any] = json.loads((_FILES / f"{name}.json").read_text())
    return content


def load(spec: str, kind: str | None = None, **options: Any) -> Model:
    """Return the model that a text specifies, as in a configuration.

    ====================  ============  ==================================================
    spec                  kind          result
    ====================  ============  ==================================================
    a shipped name        (onnx)        :class:`~fedzo.models.OnnxModel`
    ``path/to/it.onnx``   (onnx)        :class:`~fedzo.models.OnnxModel`
    ``http://host:port``  (http)        :class:`~fedzo.models.HttpModel`; ``model=`` is its name
    ``module:factory``    (own)         the ``Model`` that ``factory(**options)`` returns
    ``module:factory``    ``torch``     :class:`~fedzo.models.TorchModel` of ``factory()``
    ``module:factory``    ``sklearn``   :class:`~fedzo.models.SklearnModel` of ``factory()``
    ``module:function``   ``function``  :class:`~fedzo.models.FunctionModel` of the function
    ====================  ============  ==================================================

    Parameters
    ----------
    spec
        The text.
    kind
        The kind of model. None: the kind in brackets, by the form of the text.
    **options
        The other arguments of the model's class, or of the custom factory.

    Raises
    ------
    InvalidValue, UsageError
        Something does not exist, is unknown or has the wrong form.

    Examples
    --------
    >>> load("math:hypot", "function", input_shape=(2,))
    FunctionModel('hypot', outputs='logits')
    >>> load("math:hypot", "function", max_querys=5)
    Traceback (most recent call last):
        ...
    fedzo.errors.UsageError: max_querys = 5: unknown option (did you mean 'max_queries'?);
    FunctionModel takes outputs, in_flight, retries, backoff, input_range, input_shape, max_queries,
    max_batch, classes, mean, std
    """
    from fedzo import models

    require(isinstance(spec, str) and bool(spec), "model", spec, _allowed())
    kind = _kind(spec) if kind is None else kind
    match kind:
        case "onnx":
            path = _FILES / f"{spec}.onnx" if spec in shipped() else spec
            return _made(models.OnnxModel, path, options)
        case "http":
            allowed = "given with the option model = 'NAME', its name there, or with request = ..."
            known = {"model", "request", "parse"} & options.keys()
            require(bool(known), "model", spec, allowed)
            return _made(models.HttpModel, spec, options)
        case "torch":
            return _made(models.TorchModel, called(spec), options)
        case "sklearn":
            return _made(models.SklearnModel, called(spec), options)
        case "function":
            return _made(models.FunctionModel, import_object("model", spec), options)
        case "own":
            made = called(spec, **options)
            if not isinstance(made, Model):
                message = f"{spec!r} returned a {type(made).__name__}, not a fedzo.models.Model"
                raise UsageError(f"model = {message}", code="not-a-model")
            return made
    raise InvalidValue("kind", kind, one_of(KINDS) + nearest(str(kind), KINDS))


def _kind(spec: str) -> str:
    if spec.startswith(("http://", "https://")):
        return "http"
    if spec in shipped() or spec.endswith(".onnx"):
        return "onnx"
    require(":" in spec, "model", spec, _allowed() + nearest(spec, shipped()))
    return "own"


def _allowed() -> str:
    ways = "a file '*.onnx', an address 'http://...', or 'module:factory' for a custom model"
    return f"{one_of(shipped())}, {ways}" if shipped() else ways


def _made(factory: Callable[..., Model], subject: Any, options: dict[str, Any]) -> Model:
    _, *own = inspect.signature(factory).parameters
    known = [name for name in own if name != "common"] + list(Common.__annotations__)
    for key, value in options.items():
        if key not in known:
            shown = "" if "header" in key else f" = {value!r}"  # its values may be secret
            takes = f"{factory.__name__} takes {', '.join(known)}"
            message = f"{key}{shown}: unknown option{nearest(key, known)}; {takes}"
            raise UsageError(message, code="unknown-option")
    return factory(subject, **options)


def called(spec: str, **options: Any) -> Any:
    """Return what ``module:factory`` returns for some options."""
    factory = import_object("model", spec)
    require(callable(factory), "model", spec, "a function or class that returns the model")
    try:
        inspect.signature(factory).bind(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"model = {spec!r}: {error}", code="factory-arguments") from None
    return factory(**options)
