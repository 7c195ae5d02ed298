"""Language models from a folder, cut into a frozen part and upper layers to train.

The output of the frozen part for given texts is stored in the cache, for later runs too.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from fedzo.core.files import writing
from fedzo.core.progress import show
from fedzo.data.fetching import cache_folder
from fedzo.errors import (
    CannotWrite,
    FedzoWarning,
    MissingExtra,
    UsageError,
    check_count,
    first_line,
    require,
)

Tensor = Any
Module = Any

CACHE_BYTES = 8 << 30  # of all prepared files: the least recently used ones are deleted


class Prepared(NamedTuple):
    """A text after the frozen part of a model: the input of the upper layers.

    ``hidden``, (tokens, width), is the output of the lower layers for the tokens that the upper
    layers read. ``keys``, (layers, 2, heads, tokens before, size), are the keys and values of the
    untrained upper layers for the tokens before these.
    """

    hidden: Tensor
    keys: Tensor


class UpperLayers:
    """The upper layers of a decoder, and the scores of a few words after a text.

    A decoder with the architecture of Llama is cut in two. :meth:`prepare` runs the lower layers
    once per text. :meth:`scores` runs the upper layers, which are in ``module``, on the result.

    The upper layers read all tokens, or only the last few. In the second case, :meth:`prepare` also
    stores the keys and values of the untrained upper layers for the earlier tokens. Training then
    affects the last tokens only, as with activated adapters (Greenewald et al., "Activated LoRA",
    2025). If only the last of 30 tokens is read, an evaluation is 30 times cheaper.

    Attributes
    ----------
    module : torch.nn.Module
        The decoder with the upper layers only, and the norm after them.
    """

    def __init__(self, folder: Path, layers: int, words: Sequence[str]) -> None:
        torch, model, self.tokenizer = load(folder)
        decoder: Any = getattr(model, "model", None)
        if not (hasattr(decoder, "layers") and hasattr(decoder, "norm")):
            message = f"{folder}: {type(model).__name__} does not have Llama's architecture"
            raise UsageError(message, code="architecture")
        check_count("layers", layers)
        depth = len(decoder.layers)
        require(layers <= depth, "layers", layers, f"at most the model's {depth} layers")
        ids = [self.tokenizer(word, add_special_tokens=False).input_ids for word in words]
        for word, tokens in zip(words, ids, strict=True):
            require(len(tokens) == 1, "words", word, "a single token of the model")
        self.words = torch.tensor([tokens[0] for tokens in ids])
        self.module, self.head = decoder, model.lm_head.weight[self.words].detach().clone()
        self._lower = decoder.layers[: depth - layers]
        self._upper = decoder.layers[depth - layers :]
        self._embed, self._norm = decoder.embed_tokens, decoder.norm
        self._use(self._upper, self._norm)

    def prepare(self, texts: Sequence[str], longest: int, read: int = 0) -> list[Prepared]:
        """Run the frozen part on the last ``longest`` tokens of each text.

        The upper layers will read the last ``read`` of these; 0: all of them. Keys and values are
        stored in half precision, as inference engines do.
        """
        import torch

        ids = [tokens[-longest:] for tokens in self.tokenizer(list(texts)).input_ids]
        nothing = torch.empty(len(self._upper), 2, 0, 0, 0)
        with torch.inference_mode():
            batch = as_batch([Prepared(self._embed(torch.tensor(one)), nothing) for one in ids])
            self._use(self._lower, torch.nn.Identity())
            try:
                hidden = self._run(batch)
            finally:
                self._use(self._upper, self._norm)
            keys = self._keys(batch._replace(hidden=hidden)) if read else None
        parts = []
        for i, tokens in enumerate(ids):
            before = max(0, len(tokens) - read) if read else 0
            kept = nothing.half() if keys is None else keys[i, ..., :before, :].half()
            parts.append(Prepared(hidden[i, before : len(tokens)].clone(), kept.clone()))
        return parts

    def _keys(self, batch: Batch) -> Tensor:
        """Return keys and values of the upper layers, (texts, layers, 2, heads, tokens, size)."""
        import torch
        from transformers import DynamicCache

        seen: dict[int, Tensor] = {}

        class Watched(DynamicCache):  # type: ignore[misc]
            def update(self, keys: Tensor, values: Tensor, layer: int, *more: Any) -> Any:
                seen[layer] = torch.stack((keys, values), 1)
                return super().update(keys, values, layer, *more)

        self._run(batch, Watched())
        return torch.stack([seen[layer] for layer in range(len(self._upper))], 1)

    def scores(self, batch: Batch) -> Tensor:
        """Return the scores of the words after each text, (texts, words)."""
        import torch
        from transformers import DynamicCache

        cache = None
        if batch.keys.numel():
            cache = DynamicCache()
            for layer in range(len(self._upper)):
                cache.update(batch.keys[:, layer, 0], batch.keys[:, layer, 1], layer)
        out = self._run(batch, cache)
        last = out[torch.arange(len(batch.lengths)), batch.lengths - 1]
        return last @ self.head.T.to(last.dtype)

    def _run(self, batch: Batch, cache: Any = None) -> Tensor:
        out = self.module(
            inputs_embeds=batch.hidden,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state

    def _use(self, layers: Module, norm: Module) -> None:
        self.module.layers, self.module.norm = layers, norm
        self.module.config.num_hidden_layers = len(layers)
        for number, layer in enumerate(layers):  # its index in a cache of keys
            layer.self_attn.layer_idx = number


class Batch(NamedTuple):
    """Texts padded on the right, which does not change the states of a decoder."""

    hidden: Tensor  # (texts, most tokens, width)
    lengths: Tensor  # (texts,): tokens of each text
    keys: Tensor  # (texts, layers, 2, heads, most tokens before, size)
    mask: Tensor  # (texts, most tokens before + most tokens): 1 where there is a token
    positions: Tensor  # (texts, most tokens): position of a token in its text


def as_batch(parts: Sequence[Prepared]) -> Batch:
    """Return prepared texts as one batch."""
    import torch

    lengths = torch.tensor([len(part.hidden) for part in parts])
    before = torch.tensor([part.keys.shape[-2] for part in parts])
    longest, most = int(lengths.max()), int(before.max())
    hidden = torch.nn.utils.rnn.pad_sequence([part.hidden for part in parts], batch_first=True)
    shape = max((part.keys.shape for part in parts), key=lambda shape: shape[-2])
    keys = torch.zeros(len(parts), *shape, dtype=hidden.dtype)
    for own, part in zip(keys, parts, strict=True):
        if part.keys.numel():
            own[..., : part.keys.shape[-2], :] = part.keys
    mask = torch.cat(
        (torch.arange(most) < before[:, None], torch.arange(longest) < lengths[:, None]), 1
    )
    return Batch(hidden, lengths, keys, mask.long(), before[:, None] + torch.arange(longest))


def check_installed() -> None:
    """Raise unless the libraries for language models are installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"language models need {error.name}", "text") from None


def load(folder: Path) -> tuple[Any, Module, Any]:
    """Return torch, a causal language model and its tokenizer, from a folder on this machine.

    The folder has Hugging Face's format, or a ``.gguf`` file, whose weights are dequantised.
    """
    check_installed()
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    quantised = sorted(path.name for path in folder.glob("*.gguf"))
    form = {"gguf_file": quantised[0]} if quantised else {}
    where = {"local_files_only": True, **form}
    try:
        with redirect_stderr(StringIO()):  # progress bars that cannot be disabled
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **where)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.float32, **where
            )
    except (OSError, ValueError, ImportError) as error:
        message = f"{folder} has no language model that can be loaded: {first_line(error)}"
        raise UsageError(message, code="no-language-model") from None
    return torch, model.eval().requires_grad_(False), tokenizer


# ---- the cache of prepared texts


def prepare(
    upper: UpperLayers, folder: Path, texts: Sequence[str], longest: int, read: int
) -> list[Prepared]:
    """Return the result of ``upper.prepare`` for all texts, from the cache if it is stored there.

    The file is memory-mapped.
    """
    import torch

    path = cache_folder("prepared") / f"{_name(upper, folder, texts, longest, read)}.pt"
    if not path.exists():
        show(
            f"fedzo: running the frozen part of the model on {len(texts):,} texts, once; "
            f"the result is stored in {path.parent}"
        )
        found: dict[int, Prepared] = {}
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # alike: less padding
        for first in range(0, len(order), 32):
            some = order[first : first + 32]
            parts = upper.prepare([texts[i] for i in some], longest, read)
            found |= zip(some, parts, strict=True)
        prepared = [found[i] for i in range(len(texts))]
        try:
            _write(path, prepared)
        except (OSError, CannotWrite) as error:  # a full disk does not stop this run
            warnings.warn(f"not stored for the next run: {error}", FedzoWarning, stacklevel=2)
            return prepared
    path.touch()  # the most recently used file
    return [Prepared(*one) for one in torch.load(path, mmap=True, weights_only=True)]


def _name(upper: UpperLayers, folder: Path, texts: Sequence[str], longest: int, read: int) -> str:
    """Return a name that is unique to the model, the cut, the texts and the lengths."""
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir())
    settings = (str(folder.resolve()), files, len(upper.module.layers), longest, read, list(texts))
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:32]


def _write(path: Path, prepared: Sequence[Prepared]) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    total = sum(part.nbytes for one in prepared for part in one)
    files = sorted(path.parent.glob("*.pt"), key=lambda file: file.stat().st_mtime)
    total += sum(file.stat().st_size for file in files)
    while files and total > CACHE_BYTES:  # delete the least recently used file
        total -= files[0].stat().st_size
        files.pop(0).unlink(missing_ok=True)
    with writing(path) as file:
        torch.save([tuple(one) for one in prepared], file)
