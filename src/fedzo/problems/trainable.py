"""Which of a module's parameters are trained: by name, by pattern, by layer, or by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from fedzo.errors import nearest, one_of, require

Module = Any
Tensor = Any
Named = Mapping[str, Tensor]


def chosen(module: Module, trainable: str | Sequence[str] | None) -> list[tuple[str, Tensor]]:
    """Return the parameters that are named, or those that require a gradient.

    A name is that of a parameter, or of a layer, for all that is in it; a pattern such as
    ``"*.bias"`` fits names of parameters. Then there are groups: ``all``; ``norms``, the
    parameters of layers that normalise; ``biases``; ``head``, the last layer that has any.
    What the module itself calls so comes before the group.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    >>> [name for name, _ in chosen(module, ["1", "*.bias"])]
    ['0.bias', '1.weight', '1.bias']
    >>> [name for name, _ in chosen(module, "norms")]
    ['1.weight', '1.bias']
    >>> chosen(module, "1.weigth")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: trainable = '1.weigth': must be the name of a parameter or a layer, a
    pattern that a parameter has, or one of 'all', 'norms', 'biases', 'head' (did you mean
    '1.weight'?)
    """
    named = {name: one for name, one in module.named_parameters() if one.is_floating_point()}
    if trainable is None:
        found = [(name, one) for name, one in named.items() if one.requires_grad]
        require(bool(found), "trainable", None, "given: no parameter requires a gradient")
        return found
    wanted: set[str] = set()
    each = [trainable] if isinstance(trainable, str) else trainable
    is_names = isinstance(each, list | tuple) and all(isinstance(one, str) for one in each)
    require(is_names, "trainable", trainable, "a name or a list of names")
    for one in each:
        names = _named(module, named, one)
        allowed = "the name of a parameter or a layer, a pattern that a parameter has, or "
        known = [*named, *(name for name, _ in module.named_modules() if name), *GROUPS]
        require(bool(names), "trainable", one, allowed + one_of(GROUPS) + nearest(one, known))
        wanted |= names
    require(bool(wanted), "trainable", trainable, "not empty")
    return [(name, one) for name, one in named.items() if name in wanted]


def _named(module: Module, named: Named, one: str) -> set[str]:
    """Return the parameters that one name, pattern or group stands for."""
    if fits := {name for name in named if fnmatchcase(name, one)}:
        return fits
    layers = dict(module.named_modules(remove_duplicate=False))
    if one in layers and one:
        return _of(layers[one], named)
    return GROUPS[one](module, named) if one in GROUPS else set()


def _of(layer: Module, named: Named, *, own: bool = False) -> set[str]:
    """Return the names of a layer's parameters, whichever way they are tied."""
    tensors = {id(one) for one in layer.parameters(recurse=not own)}
    return {name for name, one in named.items() if id(one) in tensors}


def _all(module: Module, named: Named) -> set[str]:
    return set(named)


def _norms(module: Module, named: Named) -> set[str]:
    layers = [layer for layer in module.modules() if "norm" in type(layer).__name__.lower()]
    return set().union(*(_of(layer, named, own=True) for layer in layers))


def _biases(module: Module, named: Named) -> set[str]:
    return {name for name in named if name.split(".")[-1] == "bias"}


def _head(module: Module, named: Named) -> set[str]:
    found = [own for layer in module.modules() if (own := _of(layer, named, own=True))]
    return found[-1] if found else set()


GROUPS: Mapping[str, Callable[[Module, Named], set[str]]] = {
    "all": _all,
    "norms": _norms,
    "biases": _biases,
    "head": _head,
}
