"""The text problem with a model of a few thousand weights, made here."""

import json

import numpy as np
import pytest

import fedzo
from fedzo.data import text as texts
from fedzo.data.text import Texts
from fedzo.errors import InvalidValue, UsageError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fedzo.models.language import UpperLayers, load, pad  # noqa: E402
from fedzo.problems import text as problem_module  # noqa: E402
from fedzo.problems.text import text  # noqa: E402

WORDS = ["a", "bad", "film", "good", "Review:", "Sentiment:"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in Hugging Face's form: three layers of width 16, and a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("model")
    vocabulary = {word: i for i, word in enumerate(["?", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    fast.save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["num_hidden_layers"] == 3
    return path


PROMPTS = ["Review: a good film Sentiment:", "Review: bad Sentiment:", "a film"]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_cached_lower_layers_change_nothing(folder, layers):
    """Cut anywhere, padded or not: the scores are the whole model's, to rounding."""
    _, model, tokenizer = load(folder)
    upper = UpperLayers(folder, layers, ["good", "bad"])
    scores = upper.scores(*pad(upper.features(PROMPTS, longest=9)))
    ids = tokenizer(["good", "bad"]).input_ids
    with torch.inference_mode():
        for prompt, found in zip(PROMPTS, scores, strict=True):
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
            expected = torch.stack([logits[token[0]] for token in ids])
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_the_model_is_refused(folder, tmp_path):
    with pytest.raises(InvalidValue, match="layers = 4: must be at most the model's 3 layers"):
        UpperLayers(folder, 4, ["good"])
    with pytest.raises(InvalidValue, match="words = 'good bad'"):
        UpperLayers(folder, 1, ["good bad"])
    with pytest.raises(UsageError, match="no language model that can be loaded"):
        load(tmp_path)


@pytest.fixture
def reviews(monkeypatch):
    """Forty reviews whose one word tells all."""
    words = np.array(["bad", "good"])[np.arange(40) % 2]
    found = Texts("reviews", tuple(f"a {word} film" for word in words), np.arange(40) % 2)
    monkeypatch.setattr(problem_module, "load", lambda name, folder: found)
    monkeypatch.setattr(problem_module, "WORDS", ("bad", "good"))
    return found


def small(folder, **changes):
    settings = {"devices": 4, "train_samples": 24, "test_samples": 16, "layers": 2, **changes}
    return text(str(folder), prompt="Review: {} Sentiment:", **settings)


@pytest.mark.slow
def test_the_norms_of_the_upper_layers_are_trained(folder, reviews):
    problem = small(folder)
    assert problem.dim == (2 * 2 + 1) * 16  # two norms in each of two layers, and the last one
    assert sum(problem.size(i) for i in range(4)) == 24
    assert problem.made_by == "fedzo.problems.text:text"
    algorithm = fedzo.FedZO(
        learning_rate=0.3, smoothing=0.05, directions=8, difference="central", batch_size=8
    )
    result = fedzo.minimize(problem, algorithm=algorithm, uplink=fedzo.Seeds(), rounds=15)
    assert result.fun < result.history[0]["train_loss"]
    assert 0 <= result.history[-1]["test_accuracy"] <= 1


def test_the_start_is_the_mean_loss_of_the_prompted_model(folder, reviews):
    """Over all devices, weighted by size, against the whole model's own scores."""
    problem = small(folder)
    _, model, tokenizer = load(folder)
    which = fedzo.core.random.Draws(0, fedzo.core.random.Stream.PROBLEM).permutation(40)[:24]
    ids = [tokenizer(word).input_ids[0] for word in ("bad", "good")]
    losses = []
    with torch.inference_mode():
        for i in which:
            prompt = f"Review: {reviews.texts[i]} Sentiment:"
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1].double()
            losses.append(-torch.log_softmax(logits[ids], 0)[reviews.labels[i]].item())
    sizes = [problem.size(i) for i in range(4)]
    f = problem.losses(problem.initial(), np.arange(4))
    assert np.average(f, weights=sizes) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_samples": 25}, "train_samples = 25: must be at most 24"),
        ({"longest": 0}, "longest"),
    ],
)
def test_impossible_settings_are_refused(folder, reviews, changes, message):
    with pytest.raises(InvalidValue, match=message):
        small(folder, **changes)


def test_the_shipped_configuration_is_right():
    from fedzo.config.experiment import Experiment

    experiment = Experiment.load("text")
    assert experiment.tables["problem"]["model"] in texts.MODELS
    assert experiment.tables["problem"]["data"] in texts.TEXTS
