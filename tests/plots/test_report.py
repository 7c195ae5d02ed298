"""The report, as a browser shows it: curves where the numbers are, and no complaint."""

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedzo.cli import main
from fedzo.paper.report import figures_of_runs, write_report
from fedzo.plots.page import page
from fedzo.plots.series import axes_of_runs
from fedzo.runs import read_runs

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def browser(test):
    """Mark a test that a browser has a part in."""
    return pytest.mark.slow(pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")(test))


X = [0.0, 10.0, 20.0, 30.0]
FALLING, OTHER = [8.0, 4.0, 2.0, 1.0], [8.0, 6.0, 5.0, 4.5]
# One pixel of a PNG.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def curve(label, mean, colour, seeds=3, **more):
    low, high = [0.9 * v for v in mean], [1.1 * v for v in mean]
    drawn = {"label": label, "colour": colour, "dashed": colour > 0, "seeds": seeds}
    return drawn | {"x": X, "mean": mean, "low": low, "high": high} | more


def column(values, rounds=X):
    return {"round": rounds, "mean": values, "low": [0.9 * v for v in values], "high": values}


COLUMNS = {
    "one": {
        "round": column(X),
        "loss": column(FALLING),
        "queries": column([7 * x for x in X]),
        "accuracy": column([0.1, 0.2, 0.4], X[1:]),
    },
    "two": {"round": column(X), "loss": column(OTHER), "queries": column(X)},
}
FINALS = {
    "one": {
        "loss": {"mean": 1.0, "low": 0.9, "high": 1.1},
        "round": {"mean": 30.0, "low": 30.0, "high": 30.0},
    },
    "two": {"loss": {"mean": 4.5, "low": None, "high": None}},
}


def figure(**more):
    axes = {"title": "(a)", "x": "round", "y": "loss", "log_x": False, "log_y": False}
    axes["keys"] = ["round", "loss"]
    measured = {"what": "speed <b>", "mean": 2.0, "low": 1.9, "high": 2.1, "claimed": [1, None]}
    claim = {"name": "faster", "by": "paper", "text": "It is <i>faster</i>.", "seeds": 3}
    claim |= {"verdict": "holds", "measured": [measured | {"verdict": "holds"}], "reason": ""}
    lost = {"what": "loss", "mean": None, "low": None, "high": None, "claimed": [0, 1]}
    other = claim | {"text": "Other.", "verdict": "does not hold", "reason": "Because."}
    other["measured"] = [lost | {"verdict": "does not hold"}]
    return {
        "name": "fig3",
        "title": "Fig. 3",
        "about": "About.",
        "caption": "tiny scale",
        "axes": [axes | {"series": [curve("one", FALLING, 0), curve("two", OTHER, 1)]}],
        "columns": COLUMNS,
        "finals": FINALS,
        "claims": [claim, other],
        "configs": {"one": "[run]\nrounds = 30\n"},
        "folders": {},
        "pictures": [],
        "seconds": 90,
        "environment": {},
    } | more


def shown(content, tmp_path, script="", width=1280):
    """Return the document after its scripts have run, and what the console said."""
    path = tmp_path / "page.html"
    path.write_text(page(content).replace("</body>", f"<script>{script}</script></body>"))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    flags += "--disable-background-networking --disable-component-update --enable-logging=stderr "
    flags += f"--v=0 --dump-dom --virtual-time-budget=5000 --window-size={width},1000 "
    flags += f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *flags.split(), f"file://{path}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


CONTENT = {"title": "Reproduction", "figures": [figure()], "environment": {"fedzo": "1"}}


STEPS = Path(__file__).with_name("actions.js").read_text()
BLUE, ORANGE = [0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a browser tells after all has been done that can be."""
    same = [curve("one", FALLING, 0), curve("two", OTHER, 1), curve("three", FALLING, 2)]
    other = figure(name="other", finals={}, columns={}, claims=[])
    other["axes"] = [other["axes"][0] | {"series": same, "keys": None}]
    content = {**CONTENT, "figures": [figure(), other]}
    dom, console = shown(content, tmp_path_factory.mktemp("page"), STEPS)
    assert console == []
    return json.loads(html.unescape(re.search("<title>(.*?)</title>", dom, re.S)[1]))


@browser
def test_curves_are_where_the_numbers_are(said):
    """In the picture itself: the curves' colours at their points, the band's paler at its edge."""
    assert said["data"][0] == X
    assert said["data"][5:] == [FALLING, OTHER]
    np.testing.assert_allclose(said["data"][1], 0.9 * np.array(FALLING))
    np.testing.assert_allclose(said["data"][4], 1.1 * np.array(OTHER))
    first, second, other, band, nothing = said["spots"]
    assert first == second == [*BLUE, 255]
    assert other == [255, 255, 255, 255]  # the inside of a marker: a dashed curve has hollow ones
    assert np.abs(np.subtract(band, [*ORANGE, 0.18 * 255])).max() <= 3
    assert nothing == [0, 0, 0, 0]  # and nothing where nothing is


@browser
def test_hovering_tells_values_and_ranges(said):
    assert said["hover"] == ["4 (3.6 … 4.4)", "6 (5.4 … 6.6)"]
    assert said["shown"] == 3  # x and the two curves: bands have no line of their own


@browser
def test_zoom(said):
    assert said["dragged"] == pytest.approx([10, 20], abs=0.1)
    assert said["reset"] == said["start"]


@browser
def test_keyboard_and_voice(said):
    assert said["spoken"] == "communication round 30: one 1, two 4.5"


@browser
def test_legend_hides_a_curve_with_its_band(said):
    assert said["hidden"] == [True, False, False, True, True, False, True]
    assert said["again"] is True


@browser
def test_log_scale(said):
    """Halving is always as far."""
    np.testing.assert_allclose(np.diff(said["log"], n=2), 0, atol=0.05)
    assert np.all(np.diff(said["log"]) > 0)  # and less is lower


@browser
def test_choice_of_axes(said):
    assert said["queries"] == sorted({*X, *(7 * x for x in X)})
    assert said["label"] == "queries, all devices"
    # Only one of them has an accuracy, and none in the first round.
    assert said["accuracy"] == [["one", [7 * x for x in X[1:]], [0.1, 0.2, 0.4]]]


@browser
def test_numbers_to_take_away(said):
    head, *lines = said["csv"].splitlines()
    assert head.startswith("curve,round,loss,loss_low,loss_high,queries,")
    assert len(lines) == 8
    cells = dict(zip(head.split(","), lines[1].split(","), strict=True))
    assert (cells["curve"], cells["round"]) == ('"one"', "10")
    assert [float(cells[k]) for k in ("loss", "queries", "accuracy")] == [4, 70, 0.1]
    assert lines[0].endswith(",,,")  # no accuracy in the first round


@browser
def test_curves_that_coincide_stay_visible(said):
    """The lower of two is drawn wider than the one that lies on it."""
    other = said["widths"][1]
    assert other[0] > other[2] == other[1]


@browser
def test_words(tmp_path):
    content = {**CONTENT, "figures": [figure(environment={"fedzo": "0"})]}
    content["thresholds"] = {"slightly": "not much"}
    dom, _ = shown(content, tmp_path)
    text = html.unescape(re.sub("<[^>]+>", " ", dom))
    for words in (
        "It is <i>faster</i>.",
        "speed <b>:",
        "2 [1.9, 2.1]",
        ", claimed above 1",
        "✓ holds",
        "✗ does not hold",
        "Because.",
        "not finite (never reached, or diverged)",
        "tiny scale",
        "rounds = 30",
        "This page was made with fedzo 1.",
        "This figure was made with fedzo 0.",
        "Of the paper's 2 claims",
        "1 [0.9, 1.1]",
        "not much",
    ):
        assert words in text, words


@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_page(width, tmp_path):
    frame = page({**CONTENT, "figures": [figure(), figure(name="other")]})
    script = f"""
    const frame = document.createElement("iframe");
    frame.style = "width:{width}px;height:900px;border:0"; frame.srcdoc = {json.dumps(frame)};
    frame.onload = () => setTimeout(() => {{
      const root = frame.contentDocument.documentElement;
      document.title = [root.scrollWidth, root.clientWidth, root.querySelectorAll("canvas").length];
    }});
    document.body.append(frame);
    """.replace("</script>", "<\\/script>")
    outside = {"title": "outside", "figures": [], "environment": {}}
    dom, _ = shown(outside, tmp_path, script)
    needed, given, curves = map(int, re.search("<title>(.*?)</title>", dom)[1].split(","))
    assert needed == given
    assert width - 20 <= given <= width  # but for a scrollbar
    assert curves == 2


@browser
def test_values_that_cannot_be_drawn(tmp_path):
    """A log axis passes over what is not above zero; a single point and no curve are fine."""
    series = [curve("one", [0.0, 1.0, 0.1, 0.01], 0, seeds=1, low=[], high=[])]
    series.append(curve("two", [1.0], 1, x=[0.0], low=[1.0], high=[1.0]))
    axes = {"title": "", "x": "round", "y": "gap", "log_x": False, "log_y": True, "series": series}
    axes["keys"] = None
    empty = axes | {"series": []}
    content = {**CONTENT, "figures": [figure(axes=[axes, empty], claims=[])]}
    script = "document.title = JSON.stringify(charts.map((c) => c.drawn.map((d) => d.x)))"
    dom, console = shown(content, tmp_path, script)
    assert console == []
    assert json.loads(re.search("<title>(.*?)</title>", dom)[1]) == [[X[1:], [0.0]], []]


def test_page_loads_nothing():
    """No address but where the charts' library is from, and a policy that forbids all others."""
    text = page(CONTENT)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"https://github.com/leeoniya/uPlot"}
    assert "default-src 'none'" in text
    assert not re.search(r"<link|<script[^>]+src|@import|url\((?!#)", text)


def write_run(folder, losses, problem="softmax", **metrics):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[problem]\nname = "{problem}"\n')
    lines = [
        {"round": t, "train_loss": loss, "seconds": 6.0, **{k: v[t] for k, v in metrics.items()}}
        for t, loss in enumerate(losses)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs_over_the_air_show_the_channel(tmp_path):
    names = {"noise_to_update": [0.1, 0.2], "energy": [0.5, 0.9], "channel_uses": [0, 10]}
    write_run(tmp_path / "air", [3.0, 2.0], **names, participants=[0, 5])
    (figure,) = figures_of_runs(tmp_path)
    shown = [axes["keys"][1] for axes in figure["axes"]]
    assert shown == ["train_loss", "noise_to_update", "energy", "participants", "channel_uses"]


def test_report_and_plot_have_the_same_scales(tmp_path):
    write_run(tmp_path / "q", [300.0, 2.0], "quadratic", optimality_gap=[1.0, 0.9])
    (figure,) = figures_of_runs(tmp_path)
    drawn = axes_of_runs(read_runs([tmp_path / "q"]))
    assert [axes["log_y"] for axes in figure["axes"]] == [True, True]
    assert [axes["log_y"] for axes in drawn] == [True, True]


def test_plain_runs(tmp_path):
    """A figure for each problem, a curve for each run, seeds together."""
    write_run(tmp_path / "a", [3.0, 2.0], test_accuracy=[0.1, 0.5])
    for seed in range(2):
        write_run(tmp_path / "b" / f"seed-{seed}", [3.0, 1.0 + seed])
    write_run(tmp_path / "q", [3.0, 2.0], "quadratic", optimality_gap=[1.0, 0.1])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "history.jsonl").write_text("")
    softmax, quadratic = figures_of_runs(tmp_path)
    loss, accuracy = softmax["axes"]
    assert [(c["label"], c["mean"], c["seeds"]) for c in loss["series"]] == [
        ("a", [3.0, 2.0], 1),
        ("b", [3.0, 1.5], 2),
    ]
    assert [c["label"] for c in accuracy["series"]] == ["a"]
    assert quadratic["axes"][1]["log_y"] is True
    assert softmax["seconds"] == 18


def test_command(tmp_path, capsys):
    write_run(tmp_path / "a", [3.0, 2.0])
    (tmp_path / "a" / "images.png").write_bytes(PIXEL)
    assert main(["report", str(tmp_path)]) == 0
    out = tmp_path / "report.html"
    assert capsys.readouterr().out == f"{out}\n"
    text = out.read_text()
    assert base64.b64encode(PIXEL).decode() in text
    assert len(text) < 5_000_000
    write_run(tmp_path / "b", [3.0, 2.0])
    write_report(tmp_path)  # again, in the place of the first
    assert '"label": "b"' in out.read_text()


def test_pictures_have_limited_room(tmp_path, monkeypatch):
    for name in "abc":
        write_run(tmp_path / name, [3.0, 2.0])
        (tmp_path / name / "images.png").write_bytes(PIXEL)
    monkeypatch.setattr("fedzo.paper.report.ROOM", 2 * (len(PIXEL) * 4 // 3))
    text = write_report(tmp_path).read_text()
    assert text.count("data:image/png;base64") == 2


@pytest.mark.parametrize("what", ["nothing", "no runs"])
def test_nothing_to_report(what, tmp_path, capsys):
    folder = tmp_path / "gone" if what == "nothing" else tmp_path
    assert main(["report", str(folder)]) == 2
    told = "is not a folder" if what == "nothing" else "holds neither reproduced figures nor runs"
    assert told in capsys.readouterr().err
