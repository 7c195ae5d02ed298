"""The nodes' side: a module, its loss, and what each device holds."""

import torch
import transformers

from fedzo.data import load_texts, model_folder
from fedzo.flower import torch_client

FOLDER = str(model_folder("minilm-l6"))
SAMPLES, TOKENS = 24, 32


class Classifier(torch.nn.Module):
    """MiniLM's mean embedding and two scores: 22.6 million weights, all of them trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(FOLDER, add_pooling_layer=False)
        self.head = torch.nn.Linear(384, 2)
        torch.nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words = self.encoder(input_ids=ids, attention_mask=mask)[0] * mask[:, :, None]
        return self.head(words.sum(1) / mask.sum(1, keepdim=True))


def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    ids, mask, labels = batch
    return torch.nn.functional.cross_entropy(module(ids, mask), labels, reduction="none")


def data(device: int, devices: int) -> tuple[torch.Tensor, ...]:
    texts = load_texts("movie-snippets")
    own = slice(device, SAMPLES * devices, devices)
    words = transformers.AutoTokenizer.from_pretrained(FOLDER)(
        list(texts.texts[own]),
        padding="max_length",
        truncation=True,
        max_length=TOKENS,
        return_tensors="pt",
    )
    labels = torch.as_tensor(texts.labels[own], dtype=torch.long)
    return words["input_ids"], words["attention_mask"], labels


app = torch_client(Classifier, loss, data)
