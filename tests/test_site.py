"""The site: docstrings become Markdown, formulas MathML, and no page needs the network."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="needs fedzo[docs]")
pytest.importorskip("latex2mathml", reason="needs fedzo[docs]")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import site_docstrings  # noqa: E402
import site_gallery  # noqa: E402
import site_math  # noqa: E402


def test_formulas_stand_by_themselves():
    text = "We take\n\n.. math:: x^2\n          + 1,\n\nand :math:`y\n  + 1`. Then"
    assert site_docstrings.markdown(text) == "We take\n\n\n$$\nx^2\n+ 1,\n$$\n\n\nand $y + 1$. Then"


def test_tables_have_bars():
    text = "=====  ====\n``a``  one\n       more\n``b``  x|y\n=====  ===="
    wanted = ["|  |  |", "| --- | --- |", "| ``a`` | one more |", r"| ``b`` | x\|y |"]
    assert site_docstrings.markdown(text).split("\n") == wanted


def test_a_table_may_have_a_head():
    text = "===  ===\n..   out\n===  ===\na    1\n===  ==="
    assert site_docstrings.markdown(text) == "|  | out |\n| --- | --- |\n| a | 1 |"


def test_terms_are_defined():
    text = "It has\n\n``size``\n    how many;\n    all told\n``name``\n    which\n\nand no more"
    wanted = "``size``\n:   how many;\n    all told\n\n\n``name``\n:   which\n"
    assert wanted in site_docstrings.markdown(text)


def test_code_is_announced_by_one_colon():
    assert site_docstrings.markdown("Like so::\n\n    a = 1") == "Like so:\n\n    a = 1"


def test_formulas_are_mathml():
    page = r'<div class="arithmatex">\[a &lt; \frac{1}{2}\]</div>'
    drawn = site_math.on_page_content(page)
    assert "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>" in drawn
    assert "arithmatex" not in drawn
    assert "&lt;" in drawn or "&#x0003C;" in drawn


def test_pictures_have_one_source():
    page = '<p><img alt="a" src="images/a.png" srcset="../images/a.png" /><img src="b.png"></p>'
    wanted = '<p><img alt="a" src="images/a.png" /><img src="b.png"></p>'
    assert site_gallery.on_page_content(page) == wanted


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; whatever mkdocs warns of, a broken link too, ends the build."""
    pytest.importorskip("mkdocs", reason="needs fedzo[docs]")
    pytest.importorskip("mkdocstrings", reason="needs fedzo[docs]")
    import subprocess

    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def pages(site):
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_picture_is_there(site, pages):
    """Whichever source a browser takes."""
    seen = 0
    for name, text in pages.items():
        for source in re.findall(r'<img\b[^>]*? src(?:set)?="([^" ]+)', text):
            assert source.startswith("data:") or (site / name).parent.joinpath(source).exists(), (
                name
            )
            seen += 1
    assert seen > 30


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(pages):
    loads = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:')
    for name, text in pages.items():
        assert not loads.search(text), name


@pytest.mark.slow
def test_nothing_is_left_in_another_markup(pages):
    """Neither TeX nor reStructuredText is shown to a reader, but in source code."""
    for name, text in pages.items():
        shown = re.sub(r"<(pre|code|details)\b.*?</\1>", "", text, flags=re.DOTALL)
        for markup in ("arithmatex", ":math:", ".. math::", ":class:", ":func:", "$$"):
            assert markup not in shown, (name, markup)
