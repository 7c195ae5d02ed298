"""Curves: what is drawn is what the histories say, read back from the picture."""

import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from fedzo.cli import main
from fedzo.core.style import COLOURS
from fedzo.errors import FedzoError, UsageError
from fedzo.plots.figures import draw, draw_curves
from fedzo.plots.series import covered, labelled_axes, series_of
from fedzo.runs import read_runs

NUMBER = r"-?[\d.]+(?:e-?\d+)?"
ROUNDS = (0, 5, 10, 15, 22)


def write_run(folder, losses, rounds=ROUNDS, **metrics):
    folder.mkdir(parents=True)
    with (folder / "history.jsonl").open("w") as file:
        for i, t in enumerate(rounds):
            record = {"round": t, "train_loss": losses[i]}
            record |= {key: values[i] for key, values in metrics.items()}
            file.write(json.dumps(record) + "\n")
    return folder


def points(path):
    return np.array(re.findall(rf"[ML] ({NUMBER}) ({NUMBER})", path), float)


def drawn(svg, colour):
    """Return the points of each curve of a colour, in the order of the panels."""
    found = re.findall(rf'<path d="([^"]*)" clip-path[^>]*stroke: {colour.lower()}', svg)
    return [points(path) for path in found]


def assert_shows(curve, rounds, values):
    """The curve is the values, but for a shift and a scale of each axis; up is up."""
    for axis, expected, sign in ((0, rounds, 1), (1, values, -1)):
        shares = np.divide(expected, np.max(np.abs(expected)))
        scale, shift = np.polyfit(shares, curve[:, axis], 1)
        assert np.sign(scale) == sign
        np.testing.assert_allclose(curve[:, axis], scale * shares + shift, atol=1e-3)


def test_one_run(tmp_path):
    losses, accuracy = [2.3, 1.9, 1.4, 1.5, 1.1], [0.1, 0.4, 0.35, 0.6, 0.62]
    run = write_run(tmp_path / "run", losses, test_accuracy=accuracy, test_loss=losses)
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    svg = (tmp_path / "curves.svg").read_text()
    first, second = drawn(svg, COLOURS[0])
    assert_shows(first, ROUNDS, losses)
    assert_shows(second, ROUNDS, accuracy)
    for label in ("training loss, all devices", "test accuracy", "communication round"):
        assert f"<!-- {label} -->" in svg
    assert "<!-- run -->" not in svg  # one curve needs no legend


def test_gap_is_logarithmic(tmp_path):
    gap = [20.0, 3.0, 0.5, 0.04, 1e-6]
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.7, 1.2, 1.0], optimality_gap=gap)
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    _, second = drawn((tmp_path / "curves.svg").read_text(), COLOURS[0])
    assert_shows(second, ROUNDS, np.log(gap))


@pytest.mark.parametrize(
    ("losses", "logarithmic"),
    [
        ([800.0, 40.0, 10.0, 2.0, 1.6], True),
        ([16.0, 1e20, 1e40, 1e60, 1e64], True),
        ([2.3, 1.9, 1.4, 1.5, 1.1], False),
        ([800.0, 40.0, 10.0, 2.0, -1.6], False),
    ],
)
def test_loss_over_decades_is_logarithmic(losses, logarithmic, tmp_path):
    run = write_run(tmp_path / "run", losses)
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    [curve] = drawn((tmp_path / "curves.svg").read_text(), COLOURS[0])
    assert_shows(curve, ROUNDS, np.log(losses) if logarithmic else losses)


def test_run_without_a_metric_has_one_panel(tmp_path):
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.7, 1.2, 1.0])
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    assert len(drawn((tmp_path / "curves.svg").read_text(), COLOURS[0])) == 1


def test_run_of_one_record_is_a_dot(tmp_path):
    run = write_run(tmp_path / "run", [3.0], rounds=range(1))
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    assert f"fill: {COLOURS[0].lower()}" in (tmp_path / "curves.svg").read_text().lower()


def test_several_runs_are_told_apart(tmp_path):
    """By more colours and strokes than there are colours; of unequal length; some with a metric."""
    losses = {f"run{i}": [5.0 + i, 3.0, 2.0 - 0.1 * i, 1.0 + i, 0.5] for i in range(9)}
    runs = [
        write_run(tmp_path / name, values, **({} if i == 2 else {"test_accuracy": values}))
        for i, (name, values) in enumerate(losses.items())
    ]
    short = write_run(tmp_path / "short", [4.0, 1.0], rounds=(0, 7), test_accuracy=[0.1, 0.2])
    draw_curves(read_runs([*runs, short]), tmp_path / "curves.svg")
    svg = (tmp_path / "curves.svg").read_text()
    for name in (*losses, "short"):
        assert f"<!-- {name} -->" in svg
    curves = {i: drawn(svg, colour) for i, colour in enumerate(COLOURS)}
    assert_shows(curves[1][0], ROUNDS, losses["run1"])
    assert len(curves[1]) == 4  # run1 and run8, in both panels
    assert_shows(curves[1][1], ROUNDS, losses["run8"])
    assert len(curves[2]) == 3  # run2 has no accuracy; the short run has
    assert curves[2][1].shape == (2, 2)
    assert "stroke-dasharray" in svg
    # One scale for all curves of a panel.
    ends = [(curves[i][0][-1], losses[f"run{i}"][-1]) for i in range(7)]
    assert len({(tuple(point), value) for point, value in ends}) == 1


def test_seeds_are_a_mean_and_a_range(tmp_path):
    """Over the rounds that all of them have."""
    seeds = np.array(
        [[3.0, 2.0, 1.0, 0.7, 0.5], [5.0, 2.5, 1.5, 0.6, 0.3], [4.0, 4.0, 1.2, 0.8, 0.1]]
    )
    for i, losses in enumerate(seeds):
        write_run(tmp_path / "run" / f"seed-{i}", losses)
    write_run(tmp_path / "run" / "seed-3", [2.0, 2.0, 2.0], rounds=(0, 5, 10))
    (tmp_path / "run" / "seed-4").mkdir()  # not begun
    draw_curves(read_runs([tmp_path / "run"]), tmp_path / "curves.svg")
    svg = (tmp_path / "curves.svg").read_text()
    used = np.vstack([seeds[:, :3], [2.0, 2.0, 2.0]])
    (mean,) = drawn(svg, COLOURS[0])
    assert_shows(mean, ROUNDS[:3], used.mean(axis=0))
    assert "mean and range of 4 seeds -->" in svg
    scale, shift = np.polyfit(used.mean(axis=0), mean[:, 1], 1)
    band = re.search(
        r'<g id="FillBetween.*?<path[^>]* d="([^"]*)".*?<use [^>]* y="([^"]*)"', svg, re.S
    )
    edge = (points(band[1])[:, 1] + float(band[2]) - shift) / scale
    limits = np.concatenate([used.min(axis=0), used.max(axis=0)])
    assert set(edge.round(3)) == set(limits.round(3))


def test_half_line_at_the_end_is_passed_over(tmp_path):
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    with (run / "history.jsonl").open("a") as file:
        file.write('{"round": 30, "tra')
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    (curve,) = drawn((tmp_path / "curves.svg").read_text(), COLOURS[0])
    assert_shows(curve, ROUNDS, [3.0, 2.0, 1.2, 0.9, 0.8])


@pytest.mark.parametrize("top", [1e290, 1e300, 1.7e308])
def test_huge_losses_can_be_drawn(top, tmp_path):
    """Of a run that diverged: no warning, which would be an error here."""
    losses = [1.0, 1e20, 1e40, 1e60, top]
    run = write_run(tmp_path / "run", losses, optimality_gap=[*losses[:3], 1e-310, top])
    draw_curves(read_runs([run]), tmp_path / "curves.svg")
    first, _ = drawn((tmp_path / "curves.svg").read_text(), COLOURS[0])
    assert_shows(first, ROUNDS, np.log([*losses[:4], 1e99]))


def test_png_shows_the_curve(tmp_path):
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    draw_curves(read_runs([run]), tmp_path / "curves.png")
    picture = (imread(tmp_path / "curves.png")[..., :3] * 255).round().astype(int)
    colour = [int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)]
    assert picture.shape == (540, 780, 3)
    assert np.count_nonzero(np.all(picture == colour, axis=2)) > 500


def test_no_run_to_draw(tmp_path):
    (tmp_path / "empty").mkdir()
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    for paths in ([tmp_path / "empty"], [tmp_path / "none"], [run, tmp_path / "empty"]):
        with pytest.raises(UsageError, match=rf"^{paths[-1]} holds no history of a run$"):
            draw_curves(read_runs(paths), tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_picture_is_replaced_whole_or_not_at_all(tmp_path):
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    with pytest.raises(FedzoError, match=r"cannot write .*none/x.png: No such file or directory"):
        draw_curves(read_runs([run]), tmp_path / "none" / "x.png")
    (tmp_path / "curves.png").write_bytes(b"old")
    draw_curves(read_runs([run]), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in tmp_path.iterdir()} == {"run", "curves.png"}


def test_labels_of_small_numbers_do_not_overlap(tmp_path):
    """Of a sweep over 0.001 to 0.005 there were nine, each as wide as its distance."""
    axes = labelled_axes(
        "η", "loss", [series_of("", np.array([0.001, 0.005]), np.ones((1, 2)), 0, False)]
    )
    draw([axes, axes], tmp_path / "sweep.svg")
    labels = re.findall(r"<!-- (0\.00\d*) -->", (tmp_path / "sweep.svg").read_text())
    assert 6 <= len(labels) <= 16  # in both panels


# --- the command ------------------------------------------------------------------------------


def test_command_for_one_run_draws_into_it(tmp_path, capsys):
    run = write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    assert main(["plot", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/curves.png\n"
    assert (run / "curves.png").exists()


def test_command_for_several_runs_draws_here(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / name, [3.0, 2.0, 1.2, 0.9, 0.8])
    assert main(["plot", "a", "b"]) == 0
    assert capsys.readouterr().out == "curves.png\n"
    assert (tmp_path / "curves.png").exists()
    assert main(["plot", "a", "b", "--out", "c.svg"]) == 0
    svg = (tmp_path / "c.svg").read_text()
    assert "<!-- a -->" in svg
    assert "<!-- b -->" in svg
    assert "mean and range" not in svg


def test_command_with_other_axes(tmp_path, monkeypatch):
    """What is drawn against what, on which scale, by which name, in which format."""
    monkeypatch.chdir(tmp_path)
    losses, queries = [3.0, 2.0, 1.2, 0.9, 0.8], [0, 10, 30, 60, 100]
    for name, factor in (("a", 1), ("b", 2)):
        costs = {"queries": [factor * q for q in queries], "mine": [7.0, 5.0, 4.0, 3.0, 2.0]}
        write_run(tmp_path / name, losses, **costs)
    options = ["--x", "queries", "--y", "train_loss", "mine", "--label", "one", "other one"]
    assert main(["plot", "a", "b", *options, "--out", "c.svg"]) == 0
    svg = (tmp_path / "c.svg").read_text()
    for label in ("one", "other one", "queries, all devices", "mine"):
        assert f"<!-- {label} -->" in svg
    first, second = drawn(svg, COLOURS[1])
    assert_shows(first, np.multiply(2, queries), losses)
    assert_shows(second, np.multiply(2, queries), [7.0, 5.0, 4.0, 3.0, 2.0])
    assert main(["plot", "a", "--x", "queries", "--logx", "--logy", "--out", "d.svg"]) == 0
    (curve,) = drawn((tmp_path / "d.svg").read_text(), COLOURS[0])
    assert_shows(curve, np.log(queries[1:]), np.log(losses[1:]))  # a log axis has no zero
    assert main(["plot", "a", "--out", "e.pdf"]) == 0
    assert (tmp_path / "e.pdf").read_bytes().startswith(b"%PDF")


def widths(svg):
    """Return the curves' widths and opacities, in the order in which they are drawn."""
    lines = re.findall(r'<path d="[^"]*" clip-path[^>]*style="([^"]*)"', svg)
    lines = [line for line in lines if any(f"stroke: {c.lower()}" in line for c in COLOURS)]
    return [
        (float(re.search(r"stroke-width: ([\d.]+)", line)[1]), "stroke-opacity" in line)
        for line in lines
    ]


def test_curves_that_coincide_stay_visible(tmp_path):
    """Of three on each other the lowest is the widest and pale; another is as usual."""
    losses = [3.0, 2.0, 1.2, 0.9, 0.8]
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, [1.001 * loss for loss in losses])
    write_run(tmp_path / "d", [4.0, 3.5, 3.0, 2.5, 2.0])
    runs = read_runs([tmp_path / name for name in "abcd"])
    draw_curves(runs, tmp_path / "curves.svg")
    a, b, c, d = widths((tmp_path / "curves.svg").read_text())
    assert a[0] > b[0] > c[0] == d[0]
    assert (a[1], b[1], c[1], d[1]) == (True, True, False, False)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["none"], "none holds no history of a run"),
        (["run", "--y", "los"], "--y = 'los': must be one of"),
        (["run", "--x", "bytes"], "--x = 'uplink_bytes': must be one of 'round'"),
        (["run", "--label", "a", "b"], "--label a b: 2 names for 1 runs"),
        (["run", "run", "--label", "a", "a"], "--label a a: two runs have the same name"),
        (["."], ". holds no history of a run"),
        (
            ["run", "--out", "no/such/x.png"],
            "cannot write no/such/x.png: No such file or directory",
        ),
        (["run", "--out", "x.xyz"], "cannot write x.xyz: Format 'xyz' is not supported"),
        (["broken"], "broken/history.jsonl is damaged in line 1"),
    ],
)
def test_command_gone_wrong(arguments, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", [3.0, 2.0, 1.2, 0.9, 0.8])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "history.jsonl").write_text("?\n")
    before = set(tmp_path.rglob("*"))
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedzo: error: {line}")
    assert err.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


def test_curves_that_only_begin_alike_hide_nothing():
    """By queries all begin at zero, where a log axis has no place: that is not to coincide."""
    cheap = {"x": [0.0, 10.0, 20.0], "mean": [2.0, 1.9, 1.8]}
    dear = {"x": [0.0, 500.0, 1000.0], "mean": [2.0, 1.5, 1.0]}
    for log_x in (False, True):
        assert covered({"log_x": log_x, "log_y": False, "series": [dear, cheap]}) == [0, 0]
    panel = {"log_x": True, "log_y": False, "series": [cheap, dear]}
    assert covered(panel) == [0, 0]  # though both are near 2 at 20 queries, interpolated
    assert covered(panel | {"series": [dear, cheap, dear]}) == [1, 0, 0]
    two = [{"x": [0.0, end], "mean": [2.0, 1.0]} for end in (8000.0, 4000.0)]
    assert covered({"log_x": False, "log_y": False, "series": two}) == [0, 0]
