"""The text problem with a model of a few thousand weights, made here."""

import json

import numpy as np
import pytest

import fedzo
from fedzo.data import Texts
from fedzo.data import text as texts
from fedzo.errors import UsageError
from raising import rejects

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fedzo.models import language  # noqa: E402
from fedzo.models.language import UpperLayers, as_batch, load, prepare  # noqa: E402
from fedzo.problems import sentiment, text  # noqa: E402

WORDS = ["a", "bad", "film", "good", "Review:", "Sentiment:"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDZO_CACHE", str(tmp_path))


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
@pytest.mark.parametrize(("read", "tolerance"), [(0, 1e-5), (1, 2e-3), (3, 2e-3), (9, 1e-5)])
def test_what_is_kept_of_the_frozen_part_changes_nothing(folder, layers, read, tolerance):
    """Cut anywhere, padded or not: the scores are the whole model's, to rounding.

    Keys that are kept have half precision, a relative 5e-4; scores here are of the order of 0.1.
    """
    _, model, tokenizer = load(folder)
    upper = UpperLayers(folder, layers, ["good", "bad"])
    scores = upper.scores(as_batch(upper.prepare(PROMPTS, longest=9, read=read)))
    ids = tokenizer(["good", "bad"]).input_ids
    with torch.inference_mode():
        for prompt, found in zip(PROMPTS, scores, strict=True):
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
            expected = torch.stack([logits[token[0]] for token in ids])
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance / 10)


def test_the_trained_layers_read_the_last_tokens_only(folder):
    """What a change of the norms does, against the whole model with its cache filled before it."""
    upper = UpperLayers(folder, 2, ["good", "bad"])
    texts = upper.prepare(PROMPTS[:1], longest=9, read=2)
    _, model, tokenizer = load(folder)
    ids = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    with torch.inference_mode():
        cache = model(ids[:, :-2], use_cache=True).past_key_values
        for changed in (upper.module, model.model):
            for layer in changed.layers[-2:]:
                layer.input_layernorm.weight *= 1.5
        logits = model(ids[:, -2:], past_key_values=cache).logits[0, -1]
        found = upper.scores(as_batch(texts))[0]
    expected = torch.stack([logits[token[0]] for token in tokenizer(["good", "bad"]).input_ids])
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)


def test_prepared_texts_are_kept_in_a_file_that_another_setting_does_not_use(folder):
    upper = UpperLayers(folder, 2, ["good", "bad"])
    first = prepare(upper, folder, PROMPTS, 9, 1)
    upper.prepare = None  # nothing is computed again
    again = prepare(upper, folder, PROMPTS, 9, 1)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.hidden, other.hidden)
        assert torch.equal(one.keys, other.keys)
    for changed in ((PROMPTS, 9, 2), (PROMPTS, 8, 1), (PROMPTS[:2], 9, 1)):
        with pytest.raises(TypeError):
            prepare(upper, folder, *changed)


def test_the_file_used_longest_ago_gives_way(folder, monkeypatch):
    upper = UpperLayers(folder, 2, ["good", "bad"])
    kept = language.cache_folder("prepared")
    for longest in (7, 8):
        prepare(upper, folder, PROMPTS, longest, 1)
    files = sorted(kept.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns)
    monkeypatch.setattr(language, "CACHE_BYTES", sum(path.stat().st_size for path in files))
    prepare(upper, folder, PROMPTS, 9, 1)
    assert not files[0].exists()
    assert files[1].exists()


def test_what_does_not_fit_the_model_is_refused(folder, tmp_path):
    with rejects("layers"):
        UpperLayers(folder, 4, ["good"])
    with rejects("words"):
        UpperLayers(folder, 1, ["good bad"])
    with pytest.raises(UsageError, match="no language model that can be loaded"):
        load(tmp_path)


@pytest.fixture
def reviews(monkeypatch):
    """Forty reviews whose one word tells all."""
    words = np.array(["bad", "good"])[np.arange(40) % 2]
    found = Texts(
        "reviews",
        tuple(f"a {word} film" for word in words),
        np.arange(40) % 2,
        ("negative", "positive"),
    )
    monkeypatch.setattr(sentiment, "load_texts", lambda name, folder: found)
    monkeypatch.setattr(sentiment, "WORDS", ("bad", "good"))
    return found


def small(folder, **changes):
    settings = {
        "devices": 4,
        "train_samples": 20,
        "validation_samples": 8,
        "test_samples": 12,
        "layers": 2,
        **changes,
    }
    return text(str(folder), prompt="Review: {} Sentiment:", **settings)


@pytest.mark.slow
def test_the_norms_of_the_upper_layers_are_trained(folder, reviews):
    problem = small(folder)
    assert problem.dim == (2 * 2 + 1) * 16  # two norms in each of two layers, and the last one
    assert sum(problem.size(i) for i in range(4)) == 20
    assert problem.factory == "fedzo.problems.sentiment:text"
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
    which = fedzo.core.random.Draws(0, fedzo.core.random.Stream.PROBLEM).permutation(40)[:20]
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


@pytest.mark.parametrize("changes", [{"train_samples": 21}, {"read": -1}, {"longest": 0}])
def test_impossible_settings_are_refused(folder, reviews, changes):
    with rejects(*changes):
        small(folder, **changes)


def test_the_shipped_configuration_is_right():
    from fedzo.config.experiment import Experiment

    experiment = Experiment.load("text")
    assert experiment.tables["problem"]["model"] in texts.MODELS
    assert experiment.tables["problem"]["data"] in texts.TEXTS


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_one_text_moves_a_private_reply_by_no_more_than_its_bound(folder, sampling, monkeypatch):
    """2C/b' if a text and its label change, C/(q n) if it counts as zero."""
    pytest.importorskip("opendp")
    import neighbours

    neighbours.without_noise(monkeypatch)
    upper = UpperLayers(folder, 2, ["bad", "good"])
    prompts = [f"Review: {'a ' * (i % 5)}{word} Sentiment:" for i in range(5) for word in WORDS[:4]]
    texts = upper.prepare([*prompts, "bad bad bad bad"], longest=9, read=1)
    labels = (np.arange(len(prompts)) % 2).tolist()

    def made(random, other, dtype):
        samples = list(zip(texts, labels, strict=False))
        if other:
            samples[3] = texts[-1], 1 - labels[3]
        return sentiment.TextProblem(upper, [samples], {}, "norms")

    sizes = {"sizes": (1, 7, 64), "repeats": 1, "clip": 1e-5}
    assert 0.2 < neighbours.largest(made, "float32", sampling, **sizes) <= 1 + 1e-12
