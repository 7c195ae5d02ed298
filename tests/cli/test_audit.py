"""``fedzo audit``: a stranger's model, from a folder of images to a page."""

import argparse
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fedzo.cli import main
from fedzo.cli.audit import _files
from fedzo.problems.attack.page import wilson

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MODULE = """
import numpy as np
from sklearn.linear_model import LogisticRegression

rng = np.random.default_rng(0)
rows = rng.uniform(size=(600, 64))
labels = (rows.reshape(-1, 8, 8)[:, :4].mean(axis=(1, 2)) > rows.mean(axis=1)).astype(int)


def classifier():
    return LogisticRegression(C=10.0, max_iter=1000).fit(rows, labels)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A module with a classifier of 8 x 8 images, and a folder of images for it."""
    pytest.importorskip("sklearn")
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("audit")
    (folder / "stranger_of_audit.py").write_text(MODULE)
    rng = np.random.default_rng(1)
    for number in range(60):
        pixels = rng.uniform(size=(8, 8))
        label = int(pixels[:4].mean() > pixels.mean())
        (folder / "images" / str(label)).mkdir(parents=True, exist_ok=True)
        levels = np.rint(255 * pixels).astype(np.uint8)
        image.fromarray(levels).save(folder / "images" / str(label) / f"{number}.png")
    return folder


@pytest.fixture
def audit(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])

    def run(*arguments):
        out = tmp_path / "out"
        given = ["audit", "stranger_of_audit:classifier", "--images", "images", "--out", str(out)]
        return main([*given, *arguments]), out

    return run


def test_from_a_folder_of_images_to_a_report(audit, capsys):
    code, out = audit("--eps", "16/255", "--max-queries", "3000")
    assert code == 0
    assert capsys.readouterr().out.strip().endswith("attack.html")
    told = json.loads((out / "attack.json").read_text())
    assert told["model"] == "stranger_of_audit:classifier"
    assert told["queries"] <= 3_000
    assert told["eps"] == pytest.approx(16 / 255)
    assert told["outputs"] == "probabilities"
    count, rate = told["inputs"]["count"], told["success"]
    assert told["success_interval"] == pytest.approx(wilson(round(rate * count), count))
    assert told["inputs"]["error_before"] == 0
    assert told["detector"]["queries"] > 0
    text = (out / "attack.html").read_text()
    assert f"{rate:.0%} of {count} inputs" in text
    assert text.count("data:image/png;base64") == 12
    assert "http" not in re.sub(r"http://www.w3.org\S*", "", text)  # nothing is loaded


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--eps", "many"], "--eps"),
        (["--eps", "8/"], "--eps"),
        (["--eps", "8"], "eps"),
        (["--shape", "3by4"], "--shape"),
        (["--images", "nowhere"], "--images"),
        (["--images", "images/0"], "--range"),
        (["--norm", "l3"], "norm"),
        (["--shape", "3x8x8"], "--shape"),  # 192 numbers, where the model takes 64
        (["--range", "1", "0"], "--range"),
        (["--max-queries", "20"], "--max-queries"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_what_is_not_known_is_asked_for_in_one_line(audit, capsys, arguments, named):
    code, out = audit(*arguments)
    said = capsys.readouterr().err
    assert code == 2
    assert named in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_folder_with_more_images_than_queries_allow_is_sampled(audit, capsys):
    code, out = audit("--max-queries", "200")
    assert code == 0
    assert "24 of 60 images" in capsys.readouterr().out
    told = json.loads((out / "attack.json").read_text())
    assert told["inputs"]["count"] <= 8
    assert told["queries"] <= 200


def test_a_class_without_an_image_in_the_sample_keeps_its_column(place, tmp_path):
    """Else all labels after it would be those of other classes."""
    image = next((place / "images").rglob("*.png"))
    for number, name in enumerate(["ant", "bee", "cat"]):
        (tmp_path / name).mkdir()
        for copy in range([60, 1, 60][number]):
            shutil.copy(image, tmp_path / name / f"{copy}.png")
    given = argparse.Namespace(images=tmp_path, max_queries=200, seed=0)
    files, labels = _files(given)
    assert "bee" not in {file.parent.name for file in files}
    assert [["ant", "bee", "cat"][label] for label in labels] == [f.parent.name for f in files]


def test_a_function_that_needs_arguments_is_no_factory(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["audit", "math:hypot", "--images", "images"]) == 2
    assert "math:hypot" in capsys.readouterr().err


def test_images_without_classes_have_the_labels_that_the_model_gives_them(audit):
    code, out = audit("--images", "images/1", "--range", "0", "1", "--max-queries", "800")
    assert code == 0
    assert json.loads((out / "attack.json").read_text())["inputs"]["count"] > 3


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_browser(audit, width, tmp_path):
    _, out = audit("--max-queries", "1000")
    text = (out / "attack.html").read_text()
    probe = (
        "<p id='w'></p><script>document.title=document.documentElement.scrollWidth+' '+innerWidth"
    )
    (out / "probe.html").write_text(text.replace("</body>", f"{probe}</script></body>"))
    arguments = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    shown = subprocess.run(
        [*arguments, f"--window-size={width},900", f"--user-data-dir={tmp_path}/chrome",
         (out / "probe.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    whole, window = map(int, re.search(r"<title>(\d+) (\d+)</title>", shown).groups())
    assert whole <= window
