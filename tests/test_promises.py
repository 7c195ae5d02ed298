"""Every test that the page of promises names exists."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
ROWS = [
    line for line in (HERE / "docs" / "promises.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
]  # fmt: skip


def test_there_are_promises():
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS)
def test_promise_names_a_test_that_exists(row):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named, row
    for file, test in named:
        assert re.search(rf"^def {test}\(", (HERE / file).read_text(), re.MULTILINE), test
