"""The pages of results: a section is replaced by a new one, or stays with its version."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from fedzo.paper import FIGURES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

make_results = pytest.importorskip("make_results")


@pytest.fixture
def docs(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")
    shutil.copy(ROOT / "docs" / "results.md", tmp_path)
    monkeypatch.setattr(make_results, "DOCS", tmp_path)
    return tmp_path


def texts(docs):
    return {path.name: path.read_text() for path in docs.rglob("*.md")}


def test_pages_are_what_the_tool_writes(docs):
    before = texts(docs)
    make_results.write_pages({})
    assert texts(docs) == before
    for page, (_, names) in make_results.PAGES.items():
        assert list(make_results.sections_of(page)) == list(names)


def test_every_claim_is_counted(docs):
    overview = texts(docs)["results.md"]
    for name in FIGURES:
        page = next(page for page, (_, names) in make_results.PAGES.items() if name in names)
        section = make_results.sections_of(page)[name]
        rows = section.count("\n|") - 2  # without the heading
        counted = re.search(rf"^\| {name} \| \w+ \| \d+ \| (.*) \|$", overview, re.MULTILINE)[1]
        assert sum(map(int, counted.split(" | "))) == rows == len(make_results.claims_of(section))


def test_a_new_section_replaces_its_own_only(docs):
    before = texts(docs)
    claim = "| One. | number: 1 [0.9, 1.1] | 3 | **does not hold** Not as claimed: number. |"
    head = "## New\n\n![New](../images/results/fig1b.png)\n\n*paper scale.* Made with fedzo 9.9, x."
    make_results.write_pages({"fig1b": f"{head}\n\n{claim}\n"})
    after = texts(docs)
    assert {name for name in after if after[name] != before[name]} == {"results.md", "attack.md"}
    assert claim in after["attack.md"]
    assert "- fedzo 9.9 made fig1b." in after["results.md"]
    assert "| fig1b | paper | 3 | 0 | 0 | 1 | 0 |" in after["results.md"]
    old = re.findall("^## .*", before["attack.md"], re.MULTILINE)
    assert re.findall("^## .*", after["attack.md"], re.MULTILINE) == [
        "## New" if "Fig. 1b" in title else title for title in old
    ]
