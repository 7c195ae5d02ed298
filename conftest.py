"""For all tests: Ctrl-C and SIGHUP work, and what needs an extra that is not installed is skipped.

A test says itself what it needs: by ``pytest.importorskip``, by an example that imports it, by the
folder that it lies in, or by calling what raises :class:`~fedzo.errors.MissingExtra`. Any other
import that fails is a failure, so that nothing comes to need an extra unnoticed.
"""

import base64
import doctest
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from extras import needed
from fedzo.errors import MissingExtra

# The time of an example is that of the machine, which may be busy.
settings.register_profile("fedzo", deadline=None)
settings.load_profile("fedzo")

# A shell has what it starts in the background ignore Ctrl-C, and nohup the end of a terminal. So
# would all that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).parent
FLOWER = {"flower", "processes"}  # folders whose files import Flower
NEED_TORCH = {ROOT / "src" / "fedzo" / "optim.py"}  # a subclass of torch's own class
PICTURES = {"paper", "plots"}  # folders whose tests look at pictures
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAG7buVgAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def _quick_curves(request, monkeypatch):
    """Have runs end with a picture of one pixel: their curves took a third of all tests' time.

    They are drawn in the folders that test pictures, and for ``@pytest.mark.pictures``.
    """
    if PICTURES & _folders(request.path) or request.node.get_closest_marker("pictures"):
        return
    from fedzo.core.files import write_atomic

    def draw(axes, *out, **_):
        for path in out:
            write_atomic(path, PIXEL)

    monkeypatch.setattr("fedzo.plots.figures.draw", draw)


@pytest.fixture(autouse=True)
def _same_environment():
    """Restore the environment: a command that is called in this process may set it for Flower."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_make_collect_report(collector):
    """Skip files that cannot be imported without Flower, or without torch."""
    if not isinstance(collector, pytest.File):
        return None
    library = "torch" if collector.path in NEED_TORCH else "flwr"
    if library == "flwr" and not FLOWER & _folders(collector.path):
        return None
    if find_spec(library) is not None:
        return None
    reason = needed(ModuleNotFoundError(name=library))
    where = (str(collector.path), 1, f"Skipped: {reason}")
    return pytest.CollectReport(collector.nodeid, "skipped", where, [])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip tests that fail for want of an extra which they say that they need."""
    report = yield
    if report.failed and (reason := _reason(call.excinfo.value)) is not None:
        path, line, _ = item.reportinfo()
        where = (str(path), (line or 0) + 1, f"Skipped: {reason}")
        report.outcome, report.longrepr = "skipped", where
    return report


def _folders(path):
    """Return the folders of a file below this one: a checkout may lie in a folder of any name."""
    return set(path.relative_to(ROOT).parts) if path.is_relative_to(ROOT) else set()


def _reason(error):
    """Return why a test is skipped rather than failed; None where it failed."""
    imports = False
    for failure in getattr(error, "failures", [error])[:1]:  # of the lines of an example
        if isinstance(failure, doctest.UnexpectedException):
            imports = re.match(r"import |from ", failure.example.source) is not None
            error = failure.exc_info[1]
    if isinstance(error, MissingExtra):
        return f"needs an extra: {error}"
    return needed(error) if imports else None
