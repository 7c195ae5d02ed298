"""The data and the parameters that a user chooses to train a torch module with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import InvalidValue, nearest, one_of, require

Module = Any  # torch.nn.Module: torch is imported where it is used
Tensor = Any
Named = Mapping[str, Tensor]


# -------------------------------------------------------------------------------------------- data


class NamedBatch(NamedTuple):
    """A batch, and the name of each of its samples: its device and its index there."""

    content: Any
    names: list[tuple[int, int]]


@dataclass(frozen=True)
class Samples:
    """The samples of a device, and how to collate some of them."""

    items: Any
    collate: Callable[[list[Any]], Any] | None  # None: tensors, each indexed as a whole

    @classmethod
    def of(cls, data: Any) -> Samples:
        """Return the samples of a device, from any of the forms that are allowed."""
        import torch

        array = torch.Tensor | np.ndarray
        by_name = isinstance(data, Mapping) and len(data) > 0
        if by_name or (isinstance(data, tuple) and data and isinstance(data[0], array)):
            items = map_tree(_column, data, leaves=(list,))
            rows = [len(part) for part in parts_of(items)]
            allowed = "tensors with one row per sample, the same number in each"
            require(len(set(rows)) == 1, "data", f"tensors of {rows} rows", allowed)
            return cls(items, None)
        loader = isinstance(data, torch.utils.data.DataLoader)
        allowed = "with a batch_size, so that it collates samples; or give its data set"
        require(not loader or data.batch_sampler is not None, "data", "a loader", allowed)
        items = data.dataset if loader else data
        endless = isinstance(items, torch.utils.data.IterableDataset)
        if endless or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
            allowed = "tensors, a map-style data set or a loader of one, for each device"
            raise InvalidValue("data", f"a {type(items).__name__}", allowed)
        return cls(items, data.collate_fn if loader else torch.utils.data.default_collate)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(next(parts_of(self.items)) if self.collate is None else self.items)

    def contents(self) -> Iterator[bytes] | None:
        """Return the bytes of each sample; None for a data set, which may change its samples."""
        if self.collate is not None:
            return None
        import torch

        rows = [part.detach().cpu().reshape(len(self), -1) for part in parts_of(self.items)]
        rows = [part.contiguous().view(torch.uint8).numpy() for part in rows]
        return (b"".join(part[i].tobytes() for part in rows) for i in range(len(self)))

    def batch(self, which: Array, device: Any = None) -> Any:
        """Return the samples with these indices as one batch, on a device of torch."""
        import torch

        if self.collate is not None:
            batch = self.collate([self.items[int(i)] for i in which])
        else:
            rows = torch.from_numpy(which)
            batch = map_tree(lambda part: part[rows.to(part.device)], self.items)
        return map_tree(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, batch)


def _column(values: Any) -> Tensor:
    """Return what all samples of a device have under one name, as a tensor."""
    import torch

    allowed = "tensors, arrays or lists of numbers with one row per sample"
    try:
        column = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValue("data", f"a {type(values).__name__}", allowed) from error
    require(column.ndim > 0, "data", values, allowed)
    return column


def samples_of_devices(data: Sequence[Any]) -> list[Samples]:
    """Return the samples of each device, from a list with one entry per device.

    >>> import torch
    >>> inputs, labels = torch.zeros(6, 2), torch.zeros(6)
    >>> data = [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]
    >>> [len(samples) for samples in samples_of_devices(data)]
    [4, 2]
    >>> samples_of_devices((inputs, labels))
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: data = 'a tuple of tensors': must be a list with one entry per
    device, such as [(inputs, labels)] for one device
    """
    import torch

    allowed = "a list with one entry per device, such as [(inputs, labels)] for one device"
    array = torch.Tensor | np.ndarray
    if isinstance(data, tuple) and any(isinstance(part, array) for part in data):
        raise InvalidValue("data", "a tuple of tensors", allowed)
    if not isinstance(data, list | tuple):  # such as a data set
        raise InvalidValue("data", f"a {type(data).__name__}", allowed)
    require(len(data) > 0, "data", data, allowed)
    found = [Samples.of(one) for one in data]
    for device, samples in enumerate(found):
        require(len(samples) > 0, "data", f"no samples of device {device}", "not empty")
    return found


# -------------------------------------------------------------------------------------- parameters


class Piece(NamedTuple):
    """A trainable parameter, and its place in x."""

    name: str
    tensor: Tensor
    start: int
    stop: int


def pieces_of(module: Module, trainable: str | Sequence[str] | None) -> list[Piece]:
    """Return the trained parameters with their places in x, one after the other.

    Two parameters that are the same memory become one, so that they stay tied.
    """
    for name, tensor in module.named_parameters():
        _check_initialised(name, tensor)
    _tie(module)
    if trainable in (None, "all"):
        for name, layer in module.named_modules():
            allowed = f"named: the layer {name} is quantised, and cannot be trained"
            fits = ".nn.quantized." not in type(layer).__module__
            require(fits, "trainable", trainable, allowed)
    found, pieces, start = chosen(module, trainable), [], 0
    check_parameters(found, module.parameters())
    for name, tensor in found:
        tensor.data = tensor.data.contiguous()  # numbers lie in the order of their indices
        pieces.append(Piece(name, tensor, start, start + tensor.numel()))
        start += tensor.numel()
    return pieces


def check_parameters(named: Sequence[tuple[str, Tensor]], all_: Iterable[Tensor]) -> None:
    """Raise unless steps can be added to parameters; none of ``all_`` may share their memory.

    >>> import torch
    >>> check_parameters([("weight", torch.zeros(2, dtype=torch.complex64))], [])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: trainable = 'weight': must be float16, bfloat16, float32 or float64,
    not complex64; train its real and imaginary parts as two parameters, or freeze it
    """
    for name, tensor in named:
        _check_parameter(name, tensor)
    names = {id(tensor): name for name, tensor in named}
    places = sorted((one.data_ptr(), _end(one), id(one)) for one in all_ if _is_dense(one))
    end, before = 0, 0  # of the parameter that reaches farthest so far
    for first, last, number in places:
        trained = names.get(number) or names.get(before)
        allowed = "in memory that no other parameter has a part of; register one of the two"
        require(first >= end or trained is None, "trainable", trained, allowed)
        end, before = max((end, before), (last, number))


def _check_initialised(name: str, tensor: Tensor) -> None:
    import torch

    allowed = "initialised: run the module once, so that its lazy layers know their shapes"
    require(not torch.nn.parameter.is_lazy(tensor), "module", name, allowed)


def _check_parameter(name: str, tensor: Tensor) -> None:
    import torch

    _check_initialised(name, tensor)
    allowed = "made outside of torch.inference_mode(); replace it by a clone"
    require(not tensor.is_inference(), "trainable", name, allowed)
    kind, hint = str(tensor.dtype).removeprefix("torch."), "convert it, or freeze it"
    if tensor.is_complex():
        hint = "train its real and imaginary parts as two parameters, or freeze it"
    right = tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    allowed = f"float16, bfloat16, float32 or float64, not {kind}; {hint}"
    require(right and not tensor.is_quantized, "trainable", name, allowed)
    allowed = "in memory, not on the device 'meta'; load the weights first"
    require(not tensor.is_meta, "trainable", name, allowed)
    allowed = "a dense tensor, not a sparse one"
    require(tensor.layout == torch.strided, "trainable", name, allowed)
    expanded = tensor.numel() > _span(tensor)
    allowed = "a tensor of separate numbers, not an expanded one; expand it in forward instead"
    require(not expanded, "trainable", name, allowed)


def _span(tensor: Tensor) -> int:
    """Return the number of places from the first number of a tensor to the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0


def _end(tensor: Tensor) -> int:
    return int(tensor.data_ptr()) + _span(tensor) * int(tensor.itemsize)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has memory, which others may share."""
    import torch

    return tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0


def _tie(module: Module) -> None:
    """Make parameters one that are the same memory."""
    found: dict[Any, Tensor] = {}
    for layer in module.modules():
        for name, tensor in list(layer.named_parameters(recurse=False)):
            if not _is_dense(tensor):
                continue
            key = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            first = found.setdefault(key, tensor)
            if first is not tensor:
                first.requires_grad_(first.requires_grad or tensor.requires_grad)
                setattr(layer, name, first)


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and mappings."""
    if isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from parts_of(part)
    else:
        yield value


def map_tree(function: Callable[..., Any], tree: Any, leaves: tuple[type, ...] = ()) -> Any:
    """Return a tree of the same form: ``function`` of the leaves at each place.

    Containers keep their type: plain, a named tuple, or one of Hugging Face.
    """
    if not isinstance(tree, tuple | list | MutableMapping) or isinstance(tree, leaves):
        return function(tree)
    if isinstance(tree, MutableMapping):
        named = copy(tree)
        for key, child in tree.items():
            named[key] = map_tree(function, child, leaves)
        return named
    parts, kind = [map_tree(function, child, leaves) for child in tree], type(tree)
    return kind(*parts) if hasattr(tree, "_fields") else kind(parts)


def chosen(module: Module, trainable: str | Sequence[str] | None) -> list[tuple[str, Tensor]]:
    """Return the named parameters, or by default those that require a gradient.

    A name is one of these, tried in this order:

    - a parameter, or a pattern such as ``"*.bias"`` of parameters;
    - a layer, for all its parameters;
    - a group: ``all``; ``norms``, the parameters of normalisation layers; ``biases``; ``head``, the
      last layer that has parameters.

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
    pattern of parameters, or one of 'all', 'norms', 'biases', 'head' (did you mean '1.weight'?)
    """
    named = dict(module.named_parameters())
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
        allowed = "the name of a parameter or a layer, a pattern of parameters, or "
        known = [*named, *(name for name, _ in module.named_modules() if name), *GROUPS]
        require(bool(names), "trainable", one, allowed + one_of(GROUPS) + nearest(one, known))
        wanted |= names
    require(bool(wanted), "trainable", trainable, "not empty")
    return [(name, one) for name, one in named.items() if name in wanted]


def _named(module: Module, named: Named, one: str) -> set[str]:
    """Return the parameters of one name, pattern or group."""
    if fits := {name for name in named if fnmatchcase(name, one)}:
        return fits
    layers = dict(module.named_modules(remove_duplicate=False))
    if one in layers and one:
        return _of(layers[one], named)
    return GROUPS[one](module, named) if one in GROUPS else set()


def _of(layer: Module, named: Named, *, own: bool = False) -> set[str]:
    """Return the names of the parameters of a layer, tied ones included."""
    tensors = {id(one) for one in layer.parameters(recurse=not own)}
    return {name for name, one in named.items() if id(one) in tensors}


def _norms(module: Module, named: Named) -> set[str]:
    layers = [layer for layer in module.modules() if "norm" in type(layer).__name__.lower()]
    return set().union(*(_of(layer, named, own=True) for layer in layers))


def _head(module: Module, named: Named) -> set[str]:
    found = [own for layer in module.modules() if (own := _of(layer, named, own=True))]
    return found[-1] if found else set()


GROUPS: Mapping[str, Callable[[Module, Named], set[str]]] = {
    "all": lambda module, named: set(named),
    "norms": _norms,
    "biases": lambda module, named: {name for name in named if name.split(".")[-1] == "bias"},
    "head": _head,
}
