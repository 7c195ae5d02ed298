"""The README and every page of the docs do what they say: see `reader.py`."""

import inspect
import pkgutil
import re
import sys
from importlib.util import find_spec

import pytest

import fedzo
from conformance import CHECKS
from reader import ROOT, Block, Reader, blocks, check, commands, installed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "gallery"]  # made by the site's build
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
# Pages that take long to follow: they train, or run many commands.
TRAIN = ("README", "algorithm", "baselines", "configuration", "networks", "problem", "research",
         "robustness", "robustness-models", "tuning", "tutorial", "tutorial-2",
         "wireless")  # fmt: skip
FOLLOWED = [
    pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in TRAIN else ())
    for page in PAGES
]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A reader in an empty folder, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield Reader(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", FOLLOWED)
def test_what_a_page_says_works(page, reader):
    reader.follow(page.read_text())
    if reader.passed_over:  # and the rest of it was done
        pytest.skip(f"a part of the page {', '.join(sorted(reader.passed_over))}")


@EVERY_PAGE
def test_commands_exist(page):
    for block in blocks(page.read_text()):
        for words in commands(block) if block.language == "sh" else []:
            if words[0] == "fedzo":
                check(words)


@EVERY_PAGE
def test_titles_are_understood(page):
    """A title that a reader would not understand would pass a block over in silence."""
    needs = r"needs (fedzo\[[\w,]+\]|[\w-]+)"
    for block in blocks(page.read_text()):
        assert block.language in ("python", "toml", "sh", "text", "nginx"), block.language
        assert re.fullmatch(rf"|[\w.]+\.(py|toml)|prints|{needs}", block.title), block.title


@EVERY_PAGE
def test_every_fence_is_of_a_block(page):
    """A block that is indented, or has no language, would be passed over in silence as well."""
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(), re.M)
    assert len(fences) == 2 * len(blocks(page.read_text()))


@EVERY_PAGE
def test_links_lead_somewhere(page):
    """Every relative link and picture is a file of the repository.

    The gallery is made by the build of the site, which checks the links to it.
    """
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target and not target.startswith("gallery/"):
            assert (page.parent / target).exists(), target


def test_the_citation_is_of_this_version():
    assert f"\nversion: {fedzo.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
def test_the_skeleton_of_an_algorithm_conforms(reader):
    """Whoever starts from the page has an algorithm that does what all of them must."""
    reader.follow((ROOT / "docs" / "extend" / "algorithm.md").read_text())
    settings = {"learning_rate": 0.02, "directions": 3, "batch_size": 2}
    for conforms in CHECKS:
        conforms(reader.names["Proximal"](**settings))
        conforms(fedzo.FedZO(server=reader.names["HeavyBall"](), **settings))


def test_the_reader_notices_what_is_wrong(reader):
    """The checks above can fail."""
    with pytest.raises(AssertionError, match="the page says"):
        reader.follow('```python\nprint(1)\n```\n\n```text title="prints"\n2\n```\n')
    with pytest.raises(fedzo.errors.UsageError, match="--sed"):
        reader.follow("```sh\nfedzo run softmax --sed=3\n```\n")
    with pytest.raises(ZeroDivisionError):
        reader.follow("```python\n1 / 0\n```\n")
    assert Block("python", "needs fedzo[docs]", "").needs() == "fedzo[docs]"
    assert installed("pytest")
    assert installed("fedzo[tune]") == all(map(find_spec, ("sklearn", "optuna")))
    assert not installed("no-such-package")


def test_the_reference_lists_public_names_and_all_of_them():
    """Every name of the package, and of its public modules, is on one page of docs/api."""
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    listed = re.findall(r"^::: fedzo\.(\S+)", text, re.M)
    assert len(listed) == len(set(listed))
    modules = {name for name in dir(fedzo) if inspect.ismodule(getattr(fedzo, name))}
    public = {*dir(fedzo)} - modules - {"__version__"}
    for module in modules - {*listed}:  # of a module that is listed, all names are shown
        own = vars(getattr(fedzo, module))
        errors = [n for n, kind in own.items() if inspect.isclass(kind) and is_error(kind)]
        names = own.get("__all__", errors)
        public |= {f"{module}.{name}" for name in names if name not in dir(fedzo)}
    assert public <= {*listed, *(name.replace("attack.attack", "attack") for name in listed)}
    inside = {"problems", "uplinks", "config", "runs", "plots", "paper"}
    for name in listed:
        module, _, _ = name.rpartition(".")
        assert not module or module.partition(".")[0] in modules | inside, name
        assert not any(part.startswith("_") for part in name.split("."))
        assert inspect.getdoc(pkgutil.resolve_name(f"fedzo.{name}")), name


def is_error(kind):
    return issubclass(kind, Exception | Warning) and kind.__module__ == "fedzo.errors"
