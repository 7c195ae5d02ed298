"""A small reproduction from end to end: numbers, pictures, claims, the command."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from toys import FAST, LOST, SLOW, toy

from fedzo.cli import main
from fedzo.paper import ALL, find_figure
from fedzo.paper.claims import reached
from fedzo.paper.figure import Points, axes_of
from fedzo.paper.reproduce import figures_in, markdown, reproduce, run_of, seconds_left
from fedzo.plots.figures import draw
from fedzo.plots.interval import interval
from fedzo.plots.series import series


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduction")
    return out, reproduce([toy()], "tiny", out, workers=2)


def histories(out, label):
    figure = toy()
    scale = figure.scales["tiny"]
    (curve,) = (c for c in figure.curves if c.label == label)
    return [run_of(curve.experiment(scale), seed, out).history() for seed in range(3)]


def test_claims(reproduced):
    out, judged = reproduced
    falls, slower = judged["table1"]
    assert (falls["verdict"], slower["verdict"]) == ("holds", "does not hold")
    told = f"Not as claimed: {slower['measured'][0]['what']}. They are not."
    assert (falls["reason"], slower["reason"]) == ("", told)
    assert (falls["scale"], falls["rounds"], falls["seeds"]) == ("tiny", 30, 3)
    shares = [1 - h[-1]["train_loss"] / h[0]["train_loss"] for h in histories(out, SLOW)]
    mean, low, high = interval(shares)
    (measured,) = falls["measured"]
    assert [measured[k] for k in ("mean", "low", "high")] == pytest.approx(
        (mean, low, high), rel=1e-5
    )
    assert measured["claimed"] == [0.0, None]
    ratios = []
    for slow, fast in zip(histories(out, SLOW), histories(out, FAST), strict=True):
        loss = slow[-1]["train_loss"]
        ratios.append(reached(slow, loss) / reached(fast, loss))
    assert slower["measured"][0]["mean"] == pytest.approx(np.mean(ratios), rel=1e-5)
    (content,) = figures_in(out)
    assert {content["name"]: content["claims"]} == judged


def test_numbers_are_those_of_the_runs(reproduced):
    out, _ = reproduced
    (content,) = figures_in(out)
    first, second, third = content["axes"]
    for curve in first["series"]:
        losses = [[r["train_loss"] for r in h] for h in histories(out, curve["label"])]
        assert curve["x"] == list(range(0, 31, 3))
        assert curve["mean"] == pytest.approx(np.mean(losses, axis=0), rel=1e-6)
        assert curve["low"] == pytest.approx(np.min(losses, axis=0), rel=1e-6)
        assert curve["high"] == pytest.approx(np.max(losses, axis=0), rel=1e-6)
    (only,) = second["series"]
    assert only["label"] == FAST
    assert only["x"] == [r["queries"] for r in histories(out, FAST)[0]]
    assert (second["x"], second["log_y"], second["log_x"]) == ("queries, all devices", True, False)
    (points,) = third["series"]
    gaps = [
        [np.mean([r["optimality_gap"] for r in h if r["round"] >= 15]) for h in histories(out, k)]
        for k in (SLOW, FAST)
    ]
    assert points["x"] == [1.0, 5.0]
    assert points["mean"] == pytest.approx(np.mean(gaps, axis=1), rel=1e-6)
    assert content["caption"] == (
        "tiny scale, which differs from the paper's (in brackets) in d = 10 (100), T = 30 (400); "
        "3 seeds (mean, least and greatest), each with its own split"
    )
    assert content["title"] == "A toy (N = 12, M = 10)"
    told = "For tests. d = 10, N = 12, M = 10, b1 = 5, b2 = 10, η = 0.01, μ = 0.001, T = 30."
    assert content["about"] == told
    assert "local_steps = 5" in content["configs"][FAST]
    assert (out / content["folders"][FAST] / "seed-2" / "history.jsonl").exists()


def test_pictures(reproduced):
    out, _ = reproduced
    assert imread(out / "table1.png").shape[:2] == (690, 3 * 780)
    svg = (out / "table1.svg").read_text()
    for text in (
        "A toy (N = 12, M = 10)",
        SLOW,
        FAST,
        "communication round",
        "queries, all devices",
    ):
        assert f"<!-- {text} -->" in svg
    curve = re.search(r'<path d="([^"]*)"[^>]*stroke: #0072b2', svg)
    heights = np.array(re.findall(r"[ML] [\d.]+ ([\d.]+)", curve[1]), float)
    content = figures_in(out)[0]["axes"][0]["series"][0]["mean"]
    assert np.corrcoef(heights, content)[0, 1] == pytest.approx(-1, abs=1e-6)  # up is less


def test_markdown(reproduced):
    out, judged = reproduced
    text = (out / "claims.md").read_text()
    assert text == markdown(figures_in(out))
    counts, text = text.split("\n\n")
    assert [row.count("|") for row in counts.splitlines()] == [8] * len(counts.splitlines())
    assert "\n| all |" in counts
    rows = [row.strip("| ").split(" | ") for row in text.splitlines()]
    assert all(len(row) == 5 for row in rows)
    assert rows[2][0] == "table1"
    assert rows[2][4] == "**holds**"
    assert rows[3][4] == f"**does not hold** {judged['table1'][1]['reason']}"


@pytest.mark.slow
def test_figures_are_merged(tmp_path):
    """A second figure joins the first in claims.md; the first may be done again."""
    first = toy(rounds=2, seeds=1)
    reproduce([first], "tiny", tmp_path)
    content = json.loads((tmp_path / "table1.json").read_text()) | {"name": "fig3"}
    (tmp_path / "fig3.json").write_text(json.dumps(content))
    reproduce([first], "tiny", tmp_path, seeds=2)
    assert (tmp_path / "claims.md").read_text() == markdown(figures_in(tmp_path))
    claims = {figure["name"]: figure["claims"] for figure in figures_in(tmp_path)}
    assert list(claims) == ["fig3", "table1"]
    assert (claims["fig3"][0]["seeds"], claims["table1"][0]["seeds"]) == (1, 2)
    assert claims["fig3"][0]["measured"][0]["low"] is None  # one seed has no interval
    assert claims["fig3"][0]["verdict"] == "cannot tell"


@pytest.mark.slow
def test_curve_that_diverged(tmp_path):
    """It is drawn as far as it went; JSON has no infinities."""
    reproduce([toy(rounds=6, seeds=2, lost=True)], "tiny", tmp_path)
    (content,) = figures_in(tmp_path)
    lost = {curve["label"]: curve for curve in content["axes"][0]["series"]}[LOST]
    assert lost["x"][0] == 0.0
    assert len(lost["x"]) < 7
    assert all(np.isfinite(lost["mean"]))


def test_points_of_curves_that_diverged_are_left_out():
    ends = {SLOW: (2.0, 2.0), LOST: (1.0, math.nan)}
    runs = {k: [[{"round": 0, "optimality_gap": g}] for g in v] for k, v in ends.items()}
    figure = replace(
        toy(lost=True),
        panels=(Points("optimality_gap", "η", {"measured": {SLOW: 1.0, LOST: 5.0}}),),
    )
    ((points,),) = (axes["series"] for axes in axes_of(figure, runs))
    assert (points["x"], points["mean"]) == ([1.0], [2.0])


def drawn(tmp_path, *panels):
    """Return the picture of panels of one curve each: its text, and how long each curve is."""
    curve = {"colour": 0, "dashed": False, "seeds": 1, "low": [], "high": []}
    axes = [
        {"title": "", "x": "x", "y": "y", "log_y": False, "log_x": log_x}
        | {"series": [curve | {"label": label, "x": [0.0, 1.0, 10.0], "mean": [3.0, 2.0, 1.0]}]}
        for label, log_x in panels
    ]
    draw(axes, tmp_path / "picture.svg", title="A title", caption="A caption")
    svg = (tmp_path / "picture.svg").read_text()
    paths = re.findall(r'<path d="([^"]*)" clip-path[^>]*stroke: #0072b2', svg)
    return svg, [len(re.findall("[ML] ", path)) for path in paths]


def test_log_axis_leaves_zero_out(tmp_path):
    """A run begins at zero bytes: no line comes in from the left edge."""
    _, corners = drawn(tmp_path, ("one", False), ("one", True))
    assert corners == [3, 2]


def test_one_legend_where_panels_have_the_same_curves(tmp_path):
    same, _ = drawn(tmp_path, ("one", False), ("one", True))
    assert same.count("<!-- one -->") == 1
    other, _ = drawn(tmp_path, ("one", False), ("two", False))
    assert (other.count("<!-- one -->"), other.count("<!-- two -->")) == (1, 1)
    for svg in (same, other):
        assert svg.count("<!-- A title -->") == 1
        assert svg.count("<!-- A caption -->") == 1


def test_seeds_that_end_early_share_what_all_have():
    seeds = [
        [{"round": t, "y": float(t)} for t in (0, 5, 10)],
        [{"round": t, "y": 3.0 * t} for t in (0, 5)],
    ]
    drawn = series("a", seeds, "round", "y", 0)
    assert (drawn["x"], drawn["mean"], drawn["high"]) == ([0.0, 5.0], [0.0, 10.0], [0.0, 15.0])


@pytest.mark.slow
def test_command(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("fedzo.paper.find_figure", lambda name: toy(rounds=4))
    monkeypatch.setattr("fedzo.cli.reproduce.SCALES", ("tiny",))
    assert main(["reproduce", "table1", "table1", "--scale", "tiny", "--out", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert "100%" in err
    assert re.search(r"^table1 +(holds|cannot tell) +The loss falls\.$", out, re.M)
    assert out.count("The loss falls.") == 1
    assert out.splitlines()[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_time_is_told_at_the_start(tmp_path, capfd, monkeypatch):
    """And nothing of what is done already."""
    monkeypatch.setattr("fedzo.paper.find_figure", lambda name: toy(rounds=4))
    monkeypatch.setattr("fedzo.cli.reproduce.SCALES", ("tiny", "paper"))
    monkeypatch.setattr("fedzo.cli.reproduce.MINUTE", 0.0)
    monkeypatch.setattr("fedzo.paper.reproduce.cores", lambda: 1)
    monkeypatch.setattr("fedzo.core.machine.cores", lambda: 1)
    monkeypatch.setattr("fedzo.config.jobs._OVERHEAD", 10.0)
    command = ["reproduce", "table1", "--scale", "tiny", "--seeds", "5", "--out", str(tmp_path)]
    assert main(command) == 0
    told = capfd.readouterr().err.splitlines()[0]
    # Ten runs of 10 s and a little.
    assert told == "about 1 min 40 s without other load (cores: 1)"
    assert main(command) == 0
    assert capfd.readouterr().err.splitlines()[0].startswith("about 0 s without")


def test_quick_scale_takes_less_than_25_minutes_on_two_cores(tmp_path, monkeypatch):
    """By what runs are estimated to take, with some to spare."""
    monkeypatch.setattr("fedzo.paper.reproduce.cores", lambda: 2)
    figures = [find_figure(name) for name in ALL]
    assert seconds_left(figures, "quick", tmp_path) < 22 * 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig9"], "no figure 'fig9'"),
        (["victim"], "victim: the network cifar10-carlini is missing; train it with "),
        (["table1", "--seeds", "0"], "--seeds 0: must be a whole number from 1 to 10,000"),
    ],
)
def test_bad_input(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedzo.models.loading.shipped", lambda: ("cifar10-resnet8",))
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "table1", "--out", str(tmp_path / "file" / "out")]) == 2
    assert (
        f"cannot write to {tmp_path / 'file' / 'out'}: Not a directory" in capsys.readouterr().err
    )
