"""Real processes import the fedzo that is tested, and its compiled kernels."""

import sys
from pathlib import Path

import pytest

import fedzo

# Where the federation is that the tests of real processes start: before any of them is imported.
sys.path.append(str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(scope="session", autouse=True)
def _found_by_its_children():
    """Let the processes import the fedzo that is tested, and its compiled kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(fedzo.__file__).parents[1]))
        yield


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a federation of three nodes on loopback, not secured."""
    from flower_federation import Federation
    from loopback import node_config

    with Federation(tmp_path_factory.mktemp("plain")) as made:
        for i in range(3):
            made.start_node(f"node-{i}", node_config(made.folder, i, 3))
        yield made
