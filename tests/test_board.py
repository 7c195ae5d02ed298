"""The public benchmark: every method's file is valid, and the page shows what was measured."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import board  # noqa: E402

METHODS = sorted(board.HERE.glob("*.toml"))


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_a_method_has_results(path):
    method = tomllib.loads(path.read_text())
    assert method["about"].keys() == {"name", "paper", "how"}
    found = json.loads(path.with_suffix(".json").read_text())
    assert found["about"] == method["about"]
    for name in method.get("tasks", board.TASKS):
        task = board.TASKS[name]
        result = found["tasks"][name]
        assert len(result[task["metric"]]) == len(board.SEEDS)
        assert result["queries"] <= task["changes"]["run"]["max_queries"]
        assert result["rate"] in method["rates"]
        affordable = result["bytes"] * result["round"] <= task["bytes"]  # by one device
        assert affordable or result["within_bytes"] != result[task["metric"]]


def test_the_page_is_that_of_the_results():
    assert board.PAGE.read_text() == board.page()


def test_a_stranger_adds_a_row_by_one_command(tmp_path, monkeypatch, capsys):
    """With a custom algorithm in a module beside the file, on tasks cut to seconds."""
    (tmp_path / "strange.py").write_text(
        "from dataclasses import dataclass\nimport fedzo\n"
        "@dataclass(frozen=True)\nclass Mine(fedzo.FedZO):\n    local_steps: int = 2\n"
    )
    (tmp_path / "mine.toml").write_text(
        'rates = [0.001, 0.01]\n[about]\nname = "Mine"\npaper = "none"\nhow = "a test"\n'
        '[algorithm]\nname = "strange:Mine"\nparticipants = 5\nbatch_size = 2\n'
    )
    for task in board.TASKS.values():
        changes = {"run": task["changes"]["run"] | {"max_queries": 3000}}
        monkeypatch.setitem(task, "changes", changes)
        monkeypatch.setitem(task, "bytes", 5 * 800)  # one round of the quadratic, none of softmax
    monkeypatch.setattr(board, "HERE", tmp_path)
    monkeypatch.setattr(board, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sys, "argv", ["board.py", str(tmp_path / "mine.toml")])
    board.main()
    assert "| Mine (none) | a test |" in (tmp_path / "page.md").read_text()
    found = json.loads((tmp_path / "mine.json").read_text())["tasks"]
    assert found["softmax"]["within_bytes"] == [pytest.approx(0.1)] * 3  # those of the start
    few, many = found["quadratic"]["within_bytes"], found["quadratic"]["optimality_gap"]
    assert all(one > other for one, other in zip(few, many, strict=True))
