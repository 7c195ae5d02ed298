"""Language models from a folder, and what their frozen lower layers make of texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from fedzo.errors import UsageError, check_count, require

Tensor = Any
Module = Any


class UpperLayers:
    """The upper layers of a decoder, and the scores of a few words after a text.

    A decoder of Llama's form is cut in two. The lower layers are run once for each text, by
    :meth:`features`; the upper ones are in ``module``, and :meth:`scores` runs
    them on what the lower ones made. Texts are padded on the right: a decoder's states at a token
    do not depend on what comes after it.
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
        self._lower, self._upper = (
            decoder.layers[: depth - layers],
            decoder.layers[depth - layers :],
        )
        self._embed, self._norm = decoder.embed_tokens, decoder.norm
        self._use(self._upper, self._norm)

    @property
    def module(self) -> Module:
        """The upper layers, with the norm after them."""
        return self.decoder

    def features(self, texts: Sequence[str], longest: int) -> list[Tensor]:
        """Return what the lower layers make of texts, (tokens, width) each."""
        import torch

        self._use(self._lower, torch.nn.Identity())
        found = []
        try:
            for first in range(0, len(texts), 32):
                some = self.tokenizer(list(texts[first : first + 32])).input_ids
                ids = [tokens[-longest:] for tokens in some]
                embedded = [self._embed(torch.tensor(tokens)) for tokens in ids]
                with torch.inference_mode():
                    hidden = self._run(*pad(embedded))
                found += [hidden[i, : len(tokens)].clone() for i, tokens in enumerate(ids)]
        finally:
            self._use(self._upper, self._norm)
        return found

    def scores(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores of the words after each text, (texts, words)."""
        import torch

        last = self._run(hidden, lengths)[torch.arange(len(lengths)), lengths - 1]
        return last @ self.head.T.to(last.dtype)

    def _run(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        import torch

        mask = torch.arange(hidden.shape[1]) < lengths[:, None]
        out = self.decoder(inputs_embeds=hidden, attention_mask=mask.long(), use_cache=False)
        return out.last_hidden_state

    def _use(self, layers: Module, norm: Module) -> None:
        self.decoder.layers, self.decoder.norm = layers, norm
        self.decoder.config.num_hidden_layers = len(layers)


def pad(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return texts of (tokens, width) as one (texts, longest, width), and their lengths."""
    import torch

    lengths = torch.tensor([len(part) for part in parts])
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True), lengths


def load(folder: Path) -> tuple[Any, Module, Any]:
    """Return torch, a causal language model and its tokenizer, from a folder on this machine.

    The folder has Hugging Face's form, or a ``.gguf`` file, whose weights are dequantised.
    """
    try:
        import torch
        import transformers
    except ImportError:
        raise UsageError("language models need transformers: pip install 'fedzo[text]'") from None
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
