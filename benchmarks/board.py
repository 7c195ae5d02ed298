"""The public benchmark: fixed tasks, fixed budgets of queries, one file per method.

python benchmarks/board.py benchmarks/board/NAME.toml    run a method, add its row to the page
python benchmarks/board.py                               write the page again

A method is a TOML file. ``[about]`` has its name, its paper and how it got here. ``[algorithm]``,
``[server]`` and ``[uplink]`` are those of a configuration; ``name = "module:Class"`` finds a module
beside the file. ``rates`` lists learning rates: the best one at seed 100 is used, task by task.
``tasks`` may name some of the tasks; all by default.
"""

import argparse
import json
import tomllib
from pathlib import Path
from statistics import mean
from typing import Any

from fedzo.config.experiment import Experiment, merge_changes
from fedzo.core.files import write_atomic
from fedzo.paper.reproduce import table
from fedzo.plots.interval import interval
from fedzo.runs.result import Status

HERE = Path(__file__).parent / "board"
PAGE = Path(__file__).parents[1] / "docs" / "benchmark.md"
SEEDS, TUNING_SEED = (0, 1, 2), 100
TASKS: dict[str, dict[str, Any]] = {
    "softmax": {
        "about": "softmax regression, 4,000 images of Fashion-MNIST, 50 devices with about 2 "
        "labels each, d = 7,850; test accuracy",
        "metric": "test_accuracy",
        "bytes": 2_000_000,
        "changes": {"run": {"rounds": 100_000, "evaluate_every": 100, "max_queries": 300_000}},
    },
    "quadratic": {
        "about": "a quadratic, 20 unlike devices with noisy values, d = 100; f - f*",
        "metric": "optimality_gap",
        "bytes": 100_000,
        "changes": {"run": {"rounds": 100_000, "evaluate_every": 500, "max_queries": 50_000}},
    },
}
HEAD = """# Benchmark

Federated methods that use loss values only, at equal budgets of queries and of bytes. Each row was
run by the command below, on the same code and data, with {seeds} seeds. Intervals are 95 % of the
mean (Student's t). Each method may list several learning rates. The best one at another seed is
used, by the loss at the budget of queries. These tuning runs are not counted.

**So far**: at equal queries the methods are within each other's intervals, except for MeZO on the
quadratic. At equal bytes those that send coefficients of several local steps lead.

{tasks}

{rows}

- **bytes**: sent up per participating device and round. The budget of bytes is the sum over all
  devices and rounds. A run that spends its queries first has the same number in both columns.
- **†**: the best learning rate is at an end of the list, so another one may be better.
- **written from the paper**: expressed in fedzo's terms, not run from its authors' code. Its
  numbers may differ from theirs.

FZooS is `benchmarks/board/fzoos.py`. Its devices fit Gaussian processes to their past values, and
send the weights of random features beside the update. There must be about as many features as
numbers in the model, so with d = 7,850 one run takes hours. It is not run on softmax.

## Add a row

Write `benchmarks/board/NAME.toml`, for example:

```toml
rates = [0.0003, 0.001, 0.003]

[about]
name = "FedZO, H = 5"
paper = "Fang et al. 2022"
how = "fedzo's own"

[algorithm]
name = "fedzo" # or "my_module:MyAlgorithm", with my_module.py beside this file
local_steps = 5
```

Then

1. Run `python benchmarks/board.py benchmarks/board/NAME.toml`. It writes `NAME.json` and this
   page, in a few minutes.
2. Open a pull request with the three files. We run the same command again before we merge.

The budget counts every value F(x, ξ) of one sample that the method requests. A method may choose
its batch size, directions, participants and uplink.
"""


def run(path: Path) -> None:
    """Run one method on all tasks, and write its results beside its file."""
    method = tomllib.loads(path.read_text(encoding="utf-8"))
    found = {}
    for task in method.get("tasks", TASKS):
        setting, rates = TASKS[task], {}
        for rate in method["rates"]:
            ended = outcome(path, method, task, rate, TUNING_SEED)
            rates[rate] = ended["train_loss"] if ended else float("inf")
            print(f"{task}: learning rate {rate:g} ends at {rates[rate]:.4g}", flush=True)
        rate = min(rates, key=rates.__getitem__)
        ends = [outcome(path, method, task, rate, seed) for seed in SEEDS]
        if not all(ends):
            raise SystemExit(f"{task}: a run diverged at its best rate, {rate:g}")
        metric = setting["metric"]
        numbers = {key: [end[key] for end in ends] for key in ("train_loss", metric)}
        numbers["within_bytes"] = within_bytes(path, method, task, rate, ends)
        counts = {key: mean(end[key] for end in ends) for key in ("round", "queries")}
        sent = mean(end["uplink_bytes"] / end["sent"] for end in ends)
        found[task] = {"rate": rate, **numbers, **counts, "bytes": sent}
    text = json.dumps({"about": method["about"], "tasks": found}, indent=1)
    write_atomic(path.with_suffix(".json"), text.encode() + b"\n")


def within_bytes(
    path: Path, method: dict[str, Any], task: str, rate: float, ends: list[Any]
) -> list[float]:
    """Return the metric of each seed after the last round that the budget of bytes allows."""
    setting, found = TASKS[task], []
    for seed, end in zip(SEEDS, ends, strict=True):
        rounds = int(setting["bytes"] * end["round"] // end["uplink_bytes"])
        short = rounds < end["round"]
        last = outcome(path, method, task, rate, seed, rounds) if short else end
        found.append(last[setting["metric"]])
    return found


def outcome(
    path: Path,
    method: dict[str, Any],
    task: str,
    rate: float,
    seed: int,
    rounds: int | None = None,
) -> Any:
    """Return the last record of a run, with the number of messages sent; None if it diverged."""
    own = {key: method[key] for key in ("algorithm", "server", "uplink") if key in method}
    more: dict[str, Any] = {
        "algorithm": {"learning_rate": rate},
        "run": {"seed": seed, "modules": str(path.parent)},
    }
    if rounds is not None:
        more["run"]["rounds"] = rounds
    changes = merge_changes(TASKS[task]["changes"], own, more)
    result = Experiment.load(task, changes).run()
    if result.status in (Status.NON_FINITE, Status.HALTED):
        return None
    last = result.history[-1]
    return last | {"sent": max(1, last["round"] * last["participants"])}


def page() -> str:
    """Return the page, with the methods in the order of the first task."""
    results = []
    for path in sorted(HERE.glob("*.json")):
        results.append(json.loads(path.read_text()))
        rates = tomllib.loads(path.with_suffix(".toml").read_text())["rates"]
        for task in results[-1]["tasks"].values():
            task["mark"] = " †" * (task["rate"] in (rates[0], rates[-1]))
    results.sort(key=lambda each: each["tasks"]["quadratic"]["optimality_gap"])
    results.sort(key=accuracy, reverse=True)
    head = ["method", "how", "bytes"]
    for name, task in TASKS.items():
        more = task["changes"]["run"]["max_queries"], task["bytes"] // 1000
        unit = ", %" * (task["metric"] == "test_accuracy")
        head += [f"{name}{unit}: {more[0]:,} queries", f"{more[1]:,} kB"]
    rows = []
    for each in results:
        cells = [f"{each['about']['name']} ({each['about']['paper']})", each["about"]["how"]]
        softmax, quadratic = (each["tasks"].get(task) for task in TASKS)
        sent = (softmax or quadratic)["bytes"]
        cells += [f"{sent:,.0f}" if softmax else f"{sent:,.0f} (quadratic)"]
        for task, key, unit, digits in (
            (softmax, "test_accuracy", 100, 1),
            (quadratic, "optimality_gap", 1, 3),
        ):
            cells += [
                within(task[k], unit, digits) + task["mark"] if task else "not run"
                for k in (key, "within_bytes")
            ]
        rows.append(cells)
    tasks = [
        f"- **{name}**, {task['changes']['run']['max_queries']:,} queries or "
        f"{task['bytes'] // 1000:,} kB: {task['about']}."
        for name, task in TASKS.items()
    ]
    return HEAD.format(seeds=len(SEEDS), tasks="\n".join(tasks), rows=table(head, rows))


def accuracy(result: dict[str, Any]) -> float:
    """Return the mean accuracy on softmax; -1 if it was not run."""
    return float(mean(result["tasks"].get("softmax", {}).get("test_accuracy", [-1])))


def within(values: list[float], unit: float, digits: int) -> str:
    """Return a mean and its interval."""
    middle, low, high = (unit * number for number in interval(values))
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main() -> None:
    """Run a method, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", type=Path, metavar="NAME.toml")
    for path in parser.parse_args().methods:
        run(path.resolve())
    write_atomic(PAGE, page().encode())
    print(PAGE)


if __name__ == "__main__":
    main()
