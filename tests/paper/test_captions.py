"""What a figure says of its settings is what its runs are set to, at each scale, curve by curve."""

import re
from pathlib import Path

import pytest

from fedzo.paper import FIGURES, find_figure
from fedzo.paper.figure import NAMES, SYMBOLS, differences_of, settings_of, title_of
from fedzo.paper.reproduce import Plan

EACH = [(name, scale) for name in FIGURES for scale in ("quick", "paper")]
ANY = "|".join(SYMBOLS)


def set_to(tables):
    """Read a configuration anew: what each symbol is, None where the channel or nobody says."""
    problem, algorithm, uplink = tables["problem"], tables["algorithm"], tables["uplink"]
    air = uplink["name"] == "aircomp"
    wanted = algorithm.get("participants", 0)  # None is everybody, 0 that nobody says
    return {
        "model": problem.get("model"),
        "margin": problem.get("margin"),
        "data": problem.get("data"),
        "partition": problem.get("partition"),
        "d": problem.get("dim"),
        "N": problem["devices"],
        "M": None if air or wanted == 0 else wanted or problem["devices"],
        "H": algorithm.get("local_steps"),
        "c": problem.get("c"),
        "b1": algorithm.get("batch_size"),
        "b2": algorithm.get("directions"),
        "η": algorithm.get("learning_rate"),
        "μ": algorithm.get("smoothing"),
        "ρ": algorithm.get("penalty"),
        "SNR": uplink["snr_db"] if air else None,
        "h_min": uplink["h_min"] if air else None,
        "T": tables["run"]["rounds"],
    }


def assigned(text):
    """Yield each symbol that a text gives a value, and the value: "N = M = 10" is two."""
    for found in re.finditer(rf"((?:(?<![\w.])(?:{ANY}) = )+)([-\w.]*\w)", text):
        for symbol in found[1].split(" = ")[:-1]:
            yield symbol, found[2]


def is_value(told, value):
    """Tell whether a word of a text is a setting, to the four digits that are written."""
    if isinstance(value, str) or value is None:
        return told == value
    return float(told.replace("∞", "inf")) == pytest.approx(value, rel=5e-4)


def test_assigned():
    assert list(assigned("FedZO, H = 20 at SNR = -5 dB, N = M = 10.")) == [
        ("H", "20"),
        ("SNR", "-5"),
        ("N", "10"),
        ("M", "10"),
    ]


@pytest.fixture(scope="module", params=EACH, ids="-".join)
def plan(request):
    name, scale = request.param
    return Plan(find_figure(name), scale, Path("out"))


@pytest.fixture(scope="module")
def curves(plan):
    """What each curve's runs are set to, whatever the seed."""
    first = {label: set_to(runs[0].experiment.tables) for label, runs in plan.runs.items()}
    for label, runs in plan.runs.items():
        assert all(set_to(run.experiment.tables) == first[label] for run in runs)
    return first


def test_labels(curves):
    for label, settings in curves.items():
        for symbol, told in assigned(label):
            assert is_value(told, settings[symbol]), (label, symbol)


def test_title(plan, curves):
    """A number in a title is that of every curve which has such a number."""
    for symbol, told in assigned(plan.title):
        having = [s[symbol] for s in curves.values() if s[symbol] is not None]
        assert having
        assert all(is_value(told, value) for value in having), symbol


def test_every_setting_of_every_curve_is_told(plan, curves):
    """What the text says of each curve, read back: all of its settings, and none is another."""
    shared, *others = plan.about.removeprefix(plan.figure.about + " ").removesuffix(".").split(". ")
    said = {label: dict(assigned(label)) for label in curves}
    for symbol, told in assigned(re.sub(r" \(test accuracy [\d.]+ %\)", "", shared)):
        for label, settings in curves.items():
            if settings[symbol] is not None:
                said[label].setdefault(symbol, told)
    names = {
        label: NAMES[runs[0].experiment.tables["algorithm"]["name"]]
        for label, runs in plan.runs.items()
    }
    for sentence in others:
        symbol, values = sentence.split(": ", 1)
        for told, whose in re.findall(r"([-\w.∞]+) \(([^()]*)\)", values):
            for who in whose.split("; "):
                own = [who] if who in curves else [k for k, name in names.items() if name == who]
                assert own, who
                for label in own:
                    if curves[label][symbol] is not None:
                        assert symbol not in said[label], (label, symbol)
                        said[label][symbol] = told
    for label, settings in curves.items():
        known = {symbol for symbol, value in settings.items() if value is not None}
        assert set(said[label]) == known, label
        for symbol, told in said[label].items():
            assert is_value(told, settings[symbol]), (label, symbol)


def test_what_is_written_by_hand_has_no_settings(plan):
    assert list(assigned(plan.figure.title)) == []
    assert list(assigned(plan.figure.about)) == []


def test_claims_are_about_what_is_there(plan, curves):
    """A claim speaks only of values that some curve has."""
    for claim in plan.figure.claims:
        for symbol, told in assigned(claim.text):
            assert any(is_value(told, s[symbol]) for s in curves.values() if s[symbol]), claim.text


def test_all_that_differs_from_the_paper_is_told(plan, curves):
    """And the paper's value beside it; nothing that does not differ."""
    paper = Plan(plan.figure, "paper", Path("out"))
    theirs = {label: set_to(runs[0].experiment.tables) for label, runs in paper.runs.items()}
    told = dict(re.findall(rf"(?<![\w.])({ANY}) = (.+? \(.+?\)(?: or .+? \(.+?\))*)", plan.caption))
    differing = {
        s for label in curves for s in curves[label] if curves[label][s] != theirs[label][s]
    }
    assert set(told) == differing
    for symbol, words in told.items():
        pairs = re.findall(r"(\S+) \((\S+)\)", words)
        for label in curves:
            ours, printed = curves[label][symbol], theirs[label][symbol]
            if ours != printed:
                assert any(is_value(a, ours) and is_value(b, printed) for a, b in pairs)
    assert f"{len(next(iter(plan.runs.values())))} seeds" in plan.caption


# What the paper prints, section V.
ATTACK = {"c": 1.0, "b1": 25, "b2": 20, "μ": 0.001, "data": "cifar10"}
SOFTMAX = {"N": 50, "b1": 25, "b2": 20, "η": 0.001, "μ": 0.001, "data": "fashion-mnist"}
PRINTED = {
    "fig1a": ATTACK | {"N": 10, "M": 10},
    "fig1b": ATTACK | {"N": 50, "H": 20, "η": 0.001},
    "fig1c": ATTACK | {"N": 50, "H": 20, "η": 0.001, "h_min": 0.8},
    "fig2": ATTACK | {"N": 10, "M": 10},
    "fig3": SOFTMAX | {"M": 20, "partition": "shards"},
    "fig4": SOFTMAX | {"H": 5},
    "fig5": SOFTMAX | {"H": 5, "h_min": 0.8},
}
OWN = {"FedZO": {"η": 0.001}, "DZOPA": {"η": 0.005}, "ZONE-S": {"ρ": 500}}


@pytest.mark.parametrize("name", PRINTED)
def test_paper_scale_is_what_the_paper_prints(name):
    for label, tables in find_figure(name).tables("paper").items():
        settings = set_to(tables)
        printed = PRINTED[name] | next((v for k, v in OWN.items() if label.startswith(k)), {})
        for symbol, value in printed.items():
            assert settings[symbol] in (value, None), (label, symbol)


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("fig")])
def test_quick_scale_keeps_the_step_sizes(name):
    """Fewer samples, directions, steps and rounds; never another η, μ or ρ."""
    figure = find_figure(name)
    quick, paper = (figure.tables(scale) for scale in ("quick", "paper"))
    for label in quick:
        ours, theirs = set_to(quick[label]), set_to(paper[label])
        assert all(ours[s] == theirs[s] for s in ("N", "M", "c", "η", "μ", "ρ", "SNR", "h_min"))
        assert all(ours[s] <= theirs[s] for s in ("H", "b1", "b2", "T") if ours[s] is not None)


def test_seeds_have_splits_of_their_own(plan):
    for runs in plan.runs.values():
        seeds = [run.experiment.tables["run"] for run in runs]
        assert [(s["seed"], s["data_seed"]) for s in seeds] == [(i, i) for i in range(len(runs))]


def test_words_by_hand():
    """A made-up change is seen: the test above compares, and does not repeat."""
    figure = find_figure("fig1b")
    tables = figure.tables("quick")
    tables["M = 5"]["algorithm"]["learning_rate"] = 0.005
    assert "η: 0.005 (M = 5), 0.001 (M = 10; M = 25; M = 50)" in settings_of(tables)
    assert "η = 0.005 (0.001)" in differences_of(tables, figure.tables("paper"))
    tables["M = 5"]["algorithm"]["local_steps"] = 7
    assert title_of(figure.title, tables) == "Fig. 1b: attack loss, impact of M (N = 50)"
