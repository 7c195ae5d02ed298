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
from fedzo.paper.report import write_report
from fedzo.paper.runs_report import figures_of_runs
from fedzo.plots.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

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


def figure(**more):
    axes = {"title": "(a)", "x": "round", "y": "loss", "log_x": False, "log_y": False}
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
    flags += f"--v=0 --dump-dom --virtual-time-max_queries=2000 --window-size={width},1000 "
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


def points(dom, label):
    """Return the corners of a curve's mean, in pixels."""
    found = re.search(rf'data-curve="{label}">.*?class="mean" d="([^"]*)"', dom, re.S)
    return np.array(re.findall(r"[ML]([-\d.]+) ([-\d.]+)", found[1]), float)


@browser
def test_curves_are_where_the_numbers_are(tmp_path):
    dom, console = shown(CONTENT, tmp_path)
    assert console == []
    for label, mean in (("one", FALLING), ("two", OTHER)):
        drawn = points(dom, label)
        x_scale, x_shift = np.polyfit(X, drawn[:, 0], 1)
        np.testing.assert_allclose(drawn[:, 0], x_scale * np.array(X) + x_shift, atol=0.02)
        y_scale, y_shift = np.polyfit(mean, drawn[:, 1], 1)
        np.testing.assert_allclose(drawn[:, 1], y_scale * np.array(mean) + y_shift, atol=0.02)
        assert x_scale > 0
        assert y_scale < 0
    # Ticks say the same: the tick at 20 is where the third point is.
    tick = re.search(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">20</text>', dom)
    assert float(tick[1]) == pytest.approx(points(dom, "one")[2, 0], abs=0.02)
    assert dom.count('class="band"') == 2


@browser
def test_words(tmp_path):
    content = {**CONTENT, "figures": [figure(environment={"fedzo": "0"})]}
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
        "Of 2 claims",
    ):
        assert words in text, words


STEPS = Path(__file__).with_name("actions.js").read_text()


@browser
def test_everything_that_can_be_done(tmp_path):
    dom, console = shown(CONTENT, tmp_path, STEPS)
    assert console == []
    said = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom, re.S)[1]))
    # Hovering near the second point tells both curves there, the higher first, with ranges.
    assert re.sub(r"\s+", " ", said["tip"]) == "round 10 two 6 5.4 … 6.6 one 4 3.6 … 4.4"
    assert (said["tipHidden"], said["left"]) == (False, True)
    # The wheel zooms a chart that is chosen, and scrolls the page otherwise.
    assert said["wheelUnchosen"] is True
    assert said["wheel"] != said["start"]
    assert said["reset"] is True
    # A flat drag from the second to the third point makes these the ends.
    left, wide = float(said["frame"]), float(said["wide"])
    assert said["selecting"] == 1
    assert said["dragged"] == pytest.approx([left, left + wide], abs=0.05)
    assert (said["keyReset"], said["keyZoom"]) == (True, True)
    assert said["spoken"] == "round 30: two 4.5, one 1"  # two on from where the pointer was
    # The legend hides a curve and shows it again.
    assert said["hidden"] is None
    assert said["other"] is not None
    assert (said["pressed"], said["again"]) == ("false", True)
    # On a log scale halving is always as far.
    np.testing.assert_allclose(np.diff(said["log"], n=2), 0, atol=0.05)


@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_page(width, tmp_path):
    frame = page({**CONTENT, "figures": [figure(), figure(name="other")]})
    script = f"""
    const frame = document.createElement("iframe");
    frame.style = "width:{width}px;height:900px;border:0"; frame.srcdoc = {json.dumps(frame)};
    frame.onload = () => frame.contentWindow.requestAnimationFrame(() => {{
      const root = frame.contentDocument.documentElement;
      document.title = [root.scrollWidth, root.clientWidth, root.querySelectorAll(".mean").length];
    }});
    document.body.append(frame);
    """.replace("</script>", "<\\/script>")
    outside = {"title": "outside", "figures": [], "environment": {}}
    dom, _ = shown(outside, tmp_path, script)
    needed, given, curves = map(int, re.search("<title>(.*?)</title>", dom)[1].split(","))
    assert needed == given
    assert width - 20 <= given <= width  # but for a scrollbar
    assert curves == 4


@browser
def test_values_that_cannot_be_drawn(tmp_path):
    """A log axis passes over what is not above zero; a single point and no curve are fine."""
    series = [curve("one", [0.0, 1.0, 0.1, 0.01], 0, seeds=1, low=[], high=[])]
    series.append(curve("two", [1.0], 1, x=[0.0], low=[1.0], high=[1.0]))
    axes = {"title": "", "x": "round", "y": "gap", "log_x": False, "log_y": True, "series": series}
    empty = axes | {"series": []}
    content = {**CONTENT, "figures": [figure(axes=[axes, empty], claims=[])]}
    dom, console = shown(content, tmp_path)
    assert console == []
    assert len(points(dom, "one")) == 3
    assert len(points(dom, "two")) == 1
    assert "NaN" not in re.sub(r"<script.*?</script>", "", dom, flags=re.S)


def test_page_loads_nothing():
    """No address but SVG's name, and a policy that forbids all others."""
    text = page(CONTENT)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
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
        (tmp_path / name / "attack.png").write_bytes(PIXEL)
    monkeypatch.setattr("fedzo.paper.report.ROOM", 2 * (len(PIXEL) * 4 // 3))
    text = write_report(tmp_path).read_text()
    assert text.count("data:image/png;base64") == 2


@pytest.mark.parametrize("what", ["nothing", "no runs"])
def test_nothing_to_report(what, tmp_path, capsys):
    folder = tmp_path / "gone" if what == "nothing" else tmp_path
    assert main(["report", str(folder)]) == 2
    told = "is no folder" if what == "nothing" else "holds neither reproduced figures nor runs"
    assert told in capsys.readouterr().err
