"""Language models from a folder, and what their frozen part makes of texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from fedzo.errors import MissingExtra, UsageError, check_count, require

Tensor = Any
Module = Any


class Prepared(NamedTuple):
    """A text as the frozen part of a model leaves it for the upper layers.

    ``hidden``, (tokens, width), is what the lower layers make of the tokens that the upper ones
    are to read. ``keys`` is what the upper layers made of the tokens before these, when they were
    as they came: keys and values of each layer, (layers, 2, heads, tokens before, size).
    """

    hidden: Tensor
    keys: Tensor


class UpperLayers:
    """The upper layers of a decoder, and the scores of a few words after a text.

    A decoder of Llama's form is cut in two. The lower layers are run once for each text, by
    :meth:`prepare`; the upper ones are in ``module``, and :meth:`scores` runs them on what the
    lower ones made. They read all tokens, or only the last few: then those before are read once
    too, by the model as it came, and attention finds their keys and values kept. What is trained
    acts on the last tokens only, as an activated adapter does (Greenewald et al., "Activated
    LoRA", 2025), and a text of 30 tokens is 30 times cheaper to run.
    """

    def __init__(self, folder: Path, layers: int, words: Sequence[str]) -> None:
        torch, model, self.tokenizer = load(folder)
        decoder: Any = getattr(model, "model", None)
        if not (hasattr(decoder, "layers") and hasattr(decoder, "norm")):
            raise UsageError(f"{folder}: {type(model).__name__} is not a decoder of Llama's form")
        check_count("layers", layers)
        depth = len(decoder.layers)
        require(layers <= depth, "layers", layers, f"at most the model's {depth} layers")
        ids = [self.tokenizer(word, add_special_tokens=False).input_ids for word in words]
        for word, tokens in zip(words, ids, strict=True):
            require(len(tokens) == 1, "words", word, "words that are one token of the model")
        self.words = torch.tensor([tokens[0] for tokens in ids])
        self.decoder, self.head = decoder, model.lm_head.weight[self.words].detach().clone()
        self._lower = decoder.layers[: depth - layers]
        self._upper = decoder.layers[depth - layers :]
        self._embed, self._norm = decoder.embed_tokens, decoder.norm
        self._use(self._upper, self._norm)

    @property
    def module(self) -> Module:
        """The upper layers, with the norm after them."""
        return self.decoder

    def prepare(self, texts: Sequence[str], longest: int, read: int = 0) -> list[Prepared]:
        """Run the frozen part on the last ``longest`` tokens of a few texts.

        The upper layers are to read the last ``read`` of these; 0: all of them. Keys and values
        are kept in half precision, as engines for inference keep them.
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
        out = self.decoder(
            inputs_embeds=batch.hidden,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state

    def _use(self, layers: Module, norm: Module) -> None:
        self.decoder.layers, self.decoder.norm = layers, norm
        self.decoder.config.num_hidden_layers = len(layers)
        for number, layer in enumerate(layers):  # where a cache is to have its keys
            layer.self_attn.layer_idx = number


class Batch(NamedTuple):
    """Texts side by side: padded on the right, where a decoder's states do not depend on it."""

    hidden: Tensor  # (texts, most tokens, width)
    lengths: Tensor  # how many tokens each has
    keys: Tensor  # (texts, layers, 2, heads, most tokens before, size)
    mask: Tensor  # (texts, most tokens before + most tokens): 1 where there is a token
    positions: Tensor  # (texts, most tokens): where a token stands in its text


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
    """Raise unless what language models need is installed; nothing is imported yet."""
    try:
        missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    except ValueError:  # what is there has no specification
        missing = ["transformers"]
    if missing:
        raise MissingExtra(f"language models need {missing[0]}", "text")


def load(folder: Path) -> tuple[Any, Module, Any]:
    """Return torch, a causal language model and its tokenizer, from a folder on this machine.

    The folder has Hugging Face's form, or a ``.gguf`` file, whose weights are dequantised.
    """
    check_installed()
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    quantised = sorted(path.name for path in folder.glob("*.gguf"))
    form = {"gguf_file": quantised[0]} if quantised else {}
    where = {"local_files_only": True, **form}
    try:
        with redirect_stderr(StringIO()):  # bars that cannot be turned off
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **where)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.float32, **where
            )
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{folder} has no language model that can be loaded: {reason}") from None
    return torch, model.eval().requires_grad_(False), tokenizer
