"""A node limits what it computes, and how much of it."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import tomllib
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from one_node import PROBLEM, ask, limited, node, refusal

import fedzo
from driving import steps_of
from fedzo.cli import main
from fedzo.core.tasks import Evaluate, Slopes
from fedzo.errors import Halted, NoAnswer, UsageError
from fedzo.flower import (
    FlowerEngine,
    FlowerSettings,
    InProcessGrid,
    make_client_app,
    make_server_app,
    protocol,
)
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.ledger import Ledger, QueryTotals
from fedzo.flower.policy import NodeConfig
from fedzo.problems import FunctionObjective, Quadratic, softmax
from fedzo.runs import Job, RunOptions, run_job
from fedzo.runs.registry import ALGORITHMS
from raising import fails, rejects

POINTS = Evaluate(np.zeros((3, 8)), batch_size=25)
STENCIL = Slopes(np.zeros(8), np.ones(8), everyone=True, batch_size=25)  # 9 points


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        ({}, {"algorithm": fedzo.FedZO(local_steps=20_000)}, "steps"),
        ({}, {"algorithm": fedzo.FedZO(directions=10**9)}, "directions"),
        ({}, {"algorithm": fedzo.FedZO(batch_size=10**9)}, "batch"),
        ({}, {"devices": [0] * 20_000}, "devices"),
        ({}, {"devices": [0, 0]}, "devices"),
        ({}, {"x": np.zeros(9)}, "dimension"),
        ({"dim": 7}, {}, "dimension"),
        ({"local_steps": 1}, {}, "steps"),
        ({"directions": 3}, {}, "directions"),
        ({"devices": 1}, {"devices": [0, 1]}, "devices"),
        ({"memory": 4 * (8 + 3) * 8 - 1}, {}, "memory"),  # b2 rows of d numbers and b1 values
        ({"memory": 4 * (8 + 3) * 8}, {}, None),
        ({"records": 4}, {}, "records"),  # b1 = 3
        ({"directions": 2}, {"task": POINTS}, "directions"),
        ({"queries": 3 * 25 - 1}, {"task": POINTS}, "queries"),
        ({"queries": 3 * 25}, {"task": POINTS}, None),
        ({"directions": 8}, {"task": STENCIL}, "directions"),
        ({"queries": 9 * 25 - 1}, {"task": STENCIL}, "queries"),
        ({}, {"task": STENCIL}, None),
        ({}, {"task": Slopes(np.zeros(7), np.ones(7))}, "dimension"),
        ({}, {"task": Slopes(np.zeros(8), np.ones(7))}, "malformed"),
        ({"queries": 2 * 5 * 3 - 1}, {}, "queries"),  # H = 2, b2 + 1 = 5 points, b1 = 3
        ({"queries": 2 * 5 * 3}, {}, None),
        ({"queries_per_day": 29}, {}, "queries"),
        ({"queries_per_run": 29}, {}, "queries"),
        ({"queries": 5}, {"kind": protocol.EVALUATE, "devices": list(range(6))}, "queries"),
        ({"queries": 6}, {"kind": protocol.EVALUATE, "devices": list(range(6))}, None),
        ({"devices": 5}, {"kind": protocol.EVALUATE, "devices": list(range(6))}, "devices"),
        ({}, {"kind": protocol.EVALUATE, "x": np.zeros(3)}, "dimension"),
    ],
)
def test_beyond_a_limit_nothing_is_asked(limits, asked, reason):
    calls = []

    class Counted(Quadratic):
        def values(self, points, batch):
            calls.append(len(points))
            return super().values(points, batch)

        def losses(self, x, devices):
            calls.append(len(devices))
            return super().losses(x, devices)

    content = ask(limited(Counted(dim=8, devices=6), **limits), **asked)
    assert refusal(content) == reason
    assert bool(calls) == (reason is None)


def default_node(problem=PROBLEM, **node_config):
    return InProcessGrid(make_client_app(lambda c: problem), 1, node_config=node_config)


@pytest.mark.parametrize(
    ("task", "allows", "code"),
    [
        (steps_of(fedzo.FedZO(), np.zeros(8), 0, 0), {}, None),
        (POINTS, {}, "task-evaluate"),
        (POINTS, {"tasks": ["local_steps", "evaluate"]}, None),
        (STENCIL, {}, "task-slopes"),
        (STENCIL, {"tasks": ["local_steps", "evaluate"]}, "task-slopes"),
        (STENCIL, {"tasks": ["local_steps", "evaluate", "slopes"]}, None),
        (steps_of(fedzo.FedZO(), np.zeros(8), 0, 0), {"tasks": []}, "task-local-steps"),
        (steps_of(fedzo.FedAvg(), np.zeros(8), 0, 0), {}, "unknown-algorithm"),
        (steps_of(fedzo.FedAvg(), np.zeros(8), 0, 0), {"algorithms": ["fedzo", "fedavg"]}, None),
        (steps_of(fedzo.FedZO(), np.zeros(8), 0, 0), {"algorithms": []}, "unknown-algorithm"),
    ],
)
def test_node_does_the_tasks_and_runs_the_algorithms_that_it_lists(task, allows, code):
    grid = default_node(**allows)
    assert refusal(ask(grid, task=task)) == code
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert bool(ledger.spent("1").total) == (code is None)


def test_default_node_sends_no_gradients():
    """Neither of any algorithm of fedzo that needs them, nor values at points of a search."""
    for name, kind in ALGORITHMS.items():
        try:
            work = steps_of(kind(), np.zeros(8), 0, 0)
        except (AttributeError, TypeError):  # a search has no local steps
            continue
        assert (refusal(ask(default_node(), task=work)) is None) == (name == "fedzo")


@pytest.mark.parametrize(
    ("algorithm", "needed"),
    [
        (fedzo.FedAvg(learning_rate=0.1), {"algorithms": ["fedzo", "fedavg"]}),
        (fedzo.CMA(), {"tasks": ["local_steps", "evaluate"]}),
        (fedzo.LBFGS(), {"tasks": ["local_steps", "evaluate", "slopes"]}),
    ],
)
def test_server_is_told_which_line_would_allow_its_run(algorithm, needed):
    """Line by line, until it works."""
    allowed = {}
    for _ in range(3):
        app = make_client_app(lambda c: PROBLEM)
        grid = InProcessGrid(app, 2, node_config=allowed)
        engine = FlowerEngine(grid, 5, fedzo.Ideal(), FlowerSettings(clip=False))
        job = Job(algorithm, fedzo.Ideal(), RunOptions(rounds=20), tables={})
        dropped = run_job(job, engine, engine.initial()).dropped
        if not dropped:
            break
        (line,) = {re.search(r"\w+ = \[.*\]", one["reason"])[0] for one in dropped}
        allowed = tomllib.loads(line)
    assert not dropped
    assert allowed == needed


@pytest.mark.parametrize("name", ["softmax", "quadratic", "tuning", "attack"])
def test_default_run_of_a_shipped_problem_works_on_a_default_node(name):
    from fedzo.config.experiment import Experiment
    from fedzo.flower.server import run_on

    few = {"run": {"rounds": 1, "evaluate_every": 1}, "algorithm": {"local_steps": 1}}
    experiment = Experiment.load(name, few)
    problem = {k: v for k, v in experiment.tables["problem"].items() if k != "name"}
    app = make_client_app({name: problem})
    grid = InProcessGrid(app, 2, {"problem.name": name})
    result = run_on(grid, experiment)
    assert result.dropped == []
    assert [np.isfinite(record["train_loss"]) for record in result.history] == [True, True]


def test_queries_are_counted_over_messages_and_runs():
    grid = limited(queries=100, queries_per_run=70)
    assert [refusal(ask(grid)) for _ in range(3)] == [None, None, "queries"]  # 30 each
    grid.contexts[1].run_id = 2
    assert [refusal(ask(grid)) for _ in range(2)] == [None, "queries"]
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert ledger.spent("2") == QueryTotals(run=30, day=90, total=90)


def test_budget_of_a_function_holds_over_processes():
    def problem(context):  # made anew for every message, as by a process of its own
        return FunctionObjective(lambda x, device: float(x @ x), 8, devices=6, max_queries=15)

    grid = node(problem)
    assert [refusal(ask(grid)) for _ in range(2)] == [None, "queries"]  # two steps of 5 calls
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 10


def test_what_was_not_asked_is_given_back():
    def moody(x, device):
        raise NoAnswer("not today")

    grid = node(FunctionObjective(moody, 8, devices=6, retries=2))
    ask(grid)  # one point, asked three times, of at most 2 x 5 x 3
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 3


def test_time_is_limited():
    go_on = threading.Event()

    def slow(x, device):
        if device == 1:
            go_on.wait(60)
        return float(x @ x)

    grid = limited(FunctionObjective(slow, 8, devices=6), seconds=1)
    told = protocol.read_answer(ask(grid, devices=[0, 1, 2]), asked=3)
    go_on.set()
    assert 0 in {update.device for update in told.updates}
    assert {i: why.split()[0] for i, why in told.failures.items()}[1] == "seconds"


def test_time_of_an_evaluation_and_its_metrics_is_limited():
    go_on = threading.Event()

    class Slow(Quadratic):
        def metrics(self, x):
            go_on.wait(60)
            return {"secret": 1.0}

    grid = limited(Slow(dim=8, devices=6), seconds=1)
    content = ask(grid, devices=[0, 1], kind=protocol.EVALUATE, metrics=True)
    found, metrics = protocol.read_losses(content, asked=2)
    go_on.set()
    assert (set(found) - {0, 1}, metrics) == (set(), {})  # with one core, device 1 waits for 0
    assert found[0].startswith("seconds ")


def test_a_loss_of_another_shape_is_the_error_of_its_device():
    class Odd(Quadratic):
        def losses(self, x, devices):
            return np.zeros(2) if 1 in devices else super().losses(x, devices)

    content = ask(limited(Odd(dim=8, devices=6)), devices=[0, 1, 2], kind=protocol.EVALUATE)
    found, _ = protocol.read_losses(content, asked=3)
    assert {i for i, loss in found.items() if isinstance(loss, float)} == {0, 2}
    assert isinstance(found[1], str)


def test_metrics_are_paid_for():
    class Telling(Quadratic):
        def metrics(self, x):
            return {"told": 1.0}

    grid = limited(Telling(dim=8, devices=6), queries=2)
    told = [
        protocol.read_losses(
            ask(grid, devices=devices, kind=protocol.EVALUATE, metrics=True), asked=1
        )[1]
        for devices in ([], [0])
    ]
    assert told == [{}, {"told": 1.0}]
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system sees to it")
def test_memory_of_the_problem_is_limited():
    class Greedy(Quadratic):
        def values(self, points, batch):
            return np.ones((2**33, 1))  # 64 GiB

    told = protocol.read_answer(ask(limited(Greedy(dim=8, devices=6))), asked=1)
    assert told.failures[0].startswith("memory ")


def test_device_with_few_records_answers_nothing():
    problem = softmax(devices=20)
    grid = limited(problem, records=problem.size(0) + 1)
    content = ask(grid, kind=protocol.EVALUATE, x=problem.initial(), metrics=True)
    found, metrics = protocol.read_losses(content, asked=1)
    assert (list(found), metrics) == ([0], {})
    assert found[0].startswith("records ")


def test_clock_that_was_put_back_frees_nothing(tmp_path, monkeypatch):
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.create()
    ledger.reserve("1", 8, QueryTotals(100, 10, 100))
    monkeypatch.setattr("fedzo.flower.ledger._today", lambda: "2001-01-01")
    with fails("queries", Rejected):
        ledger.reserve("2", 3, QueryTotals(100, 10, 100))


def test_ledger_survives_a_kill(tmp_path):
    path = str(tmp_path / "ledger.sqlite")
    script = (
        "import sys, time; from fedzo.flower.ledger import *\n"
        "ledger = Ledger(sys.argv[1])\n"
        "ledger.create()\n"
        "while True:\n"
        "    ledger.reserve('1', 1, QueryTotals(10**9, 10**9, 10**9))\n"
        "    print('charged', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    said = sum(bool(process.stdout.readline()) for _ in range(5))
    os.kill(process.pid, signal.SIGKILL)
    said += len(process.stdout.read().splitlines())
    process.wait()
    process.stdout.close()
    assert said <= Ledger(path).spent("1").total <= said + 1  # charged before it was said


def test_ledger_is_one_for_all_who_charge_it(tmp_path):
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.create()
    taken = []

    def charge():
        for _ in range(5):
            try:
                ledger.reserve("1", 1, QueryTotals(12, 12, 12))
                taken.append(1)
            except Rejected:
                pass

    threads = [threading.Thread(target=charge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == ledger.spent("1").total == 12


@pytest.mark.parametrize(
    "damage",
    [
        "missing",
        "empty",
        "a folder",
        "no database",
        "no ledger",
        "cut short",
        "overwritten",
        "open",
    ],
)
def test_no_answer_without_a_ledger(tmp_path, damage):
    path = tmp_path / "ledger.sqlite"
    if damage == "missing":
        pass
    elif damage == "empty":
        path.touch(mode=0o600)
    elif damage == "no ledger":
        with closing(sqlite3.connect(path)) as database:
            database.execute("create table spent (run text, day text, queries integer)")
        path.chmod(0o600)
    elif damage == "open":
        Ledger(str(path)).create()
        path.chmod(0o640)  # it has the node's secret
    elif damage == "a folder":
        path.mkdir()
    elif damage == "no database":
        path.write_text("not a database" * 100)
    else:
        ledger = Ledger(str(path))
        ledger.create()
        ledger.reserve("1", 1, QueryTotals(10, 10, 10))
        whole = path.read_bytes()
        path.write_bytes(whole[:5000] if damage == "cut short" else whole[:4096] + b"\0" * 9000)
    assert refusal(ask(node(ledger=str(path)))) == "ledger"
    assert refusal(ask(node(ledger=str(path)), kind=protocol.EVALUATE)) == "ledger"
    for kind in (protocol.HELLO, protocol.INITIAL):
        grid = node(ledger=str(path))
        (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, kind)])
        assert refusal(reply.content) == "ledger"
    assert path.exists() == (damage != "missing")  # a node never makes its ledger


def test_ledger_is_created_once(tmp_path, capsys):
    """By the command, for its owner only; a second time changes nothing."""
    path = tmp_path / "here" / "ledger.sqlite"
    command = ["node", "init", "--node-config", f'ledger="{path}"']
    assert main(command) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    ledger, whole = Ledger(str(path)), path.read_bytes()
    assert main(command) == 0
    assert path.read_bytes() == whole
    ledger.reserve("1", 1, QueryTotals(10, 10, 10))
    assert main(command) == 0
    assert ledger.spent("1").total == 1
    path.write_bytes(b"")
    assert main(command) != 0
    assert not path.read_bytes()
    assert "Traceback" not in "".join(capsys.readouterr())
    assert refusal(ask(node(ledger=str(path)))) == "ledger"


@pytest.mark.parametrize("name", ["os:abort", "subprocess:getoutput", "tuning", "quadratic "])
def test_run_names_a_problem_but_cannot_import_one(name):
    settings = {"problem.name": name, "run.rounds": 1, "flower.patience": 0.1}
    grid = InProcessGrid(make_client_app({"quadratic": {}, "softmax": {}}), 1, settings)
    (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, protocol.HELLO)])
    assert refusal(reply.content) == "unknown-problem"


def test_run_cannot_have_a_file_opened(tmp_path):
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0")
    settings = {"config": str(secret), "problem.data-dir": str(tmp_path)}
    grid = InProcessGrid(make_client_app({"quadratic": {}, "softmax": {}}), 1, settings)
    (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, protocol.HELLO)])
    assert refusal(reply.content) == "unknown-problem"
    assert "root" not in str(reply.content)


def test_algorithm_that_a_node_does_not_know():
    content = protocol.task(protocol.pack(steps_of(fedzo.FedZO(), np.zeros(8), 0, 0)), [0], False)
    task = dict(content["task"])
    task["algorithm"] = json.dumps({**json.loads(task["algorithm"]), "name": "os:abort"})
    content["task"] = type(content["task"])(task)
    (reply,) = node().send_and_receive([Message(content, 1, protocol.TRAIN)])
    assert refusal(reply.content) == "unknown-algorithm"


@dataclass(frozen=True, kw_only=True)
class Proximal(fedzo.FedZO):
    """FedZO with a pull back to where the round began."""

    pull: float = 0.5

    coefficients_shape = None  # corrected steps are not sums of directions

    def correction(self, task, device):
        return lambda x: self.pull * (x - task.x)


def test_algorithm_of_ones_own(tmp_path):
    """An algorithm named module:Class in a configuration, over messages and in one process."""
    from fedzo.config.experiment import Experiment
    from fedzo.flower.server import run_on

    tables = {
        "problem": {"name": "quadratic", "devices": 6},
        "algorithm": {"name": f"{__name__}:Proximal", "pull": 0.25, "learning_rate": 0.01},
        "run": {"rounds": 4, "evaluate_every": 2},
    }
    whole, half = Experiment.resolve(tables), {"rounds": 2, "evaluate_every": 2}
    app = make_client_app({"quadratic": {"devices": 6}}, algorithms=[Proximal])
    grid = InProcessGrid(app, 2)
    run_on(grid, Experiment.resolve({**tables, "run": half}), tmp_path / "there")
    run_on(grid, whole, tmp_path / "there", resume=True)
    whole.run(tmp_path / "here")
    for name in ("model.npy", "config.toml"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    strangers = InProcessGrid(make_client_app({"quadratic": {"devices": 6}}), 2)
    assert run_on(strangers, whole).message.endswith("in which no device took part")


def test_node_settles_the_settings_of_its_problem(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(
        """
        devices = "0-1"
        [limits]
        local_steps = 7
        [problems.quadratic]
        devices = 4
        dim = 5
        """
    )
    config = {"node-file": str(file), "problem.dim": 6, "limits.directions": 9}
    read = NodeConfig.read(config)
    assert (read.limits.local_steps, read.limits.directions) == (7, 9)
    made = read.problem({"quadratic": {"dim": 2}}, {"problem.name": "quadratic"})
    assert (made.dim, made.devices) == (6, 4)


def test_node_with_problems_of_its_own_computes_no_others():
    config = {"devices": "0", "problems.quadratic": {"dim": 5, "devices": 6}}
    with fails("unknown-problem", Rejected):
        NodeConfig.read(config).problem({"softmax": {}}, {"problem.name": "softmax"})


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"limits.seconds": 0}, "limits.seconds"),
        ({"limits": 3}, "limits"),
        ({"problems.quadratic": 3}, "problems.quadratic"),
        ({"apps": "0" * 64}, "apps"),
        ({"apps": ["9f0f68b3..."]}, "apps"),
        ({"tasks": ["evaluation"]}, "tasks"),
        ({"tasks": "local_steps"}, "tasks"),
        ({"algorithms": ["fedzoo"]}, "algorithms"),
    ],
)
def test_bad_value_in_the_configuration_of_a_node(config, key):
    with rejects(key):
        NodeConfig.read(config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"limits.step": 3}, "limits.step"),
        ({"ledgre": "x"}, "did you mean 'ledger'"),
        ({"node-file": "nowhere.toml"}, "nowhere.toml"),
    ],
)
def test_unknown_key_or_file_in_the_configuration_of_a_node(config, named):
    with pytest.raises(UsageError) as caught:
        NodeConfig.read(config)
    assert named in str(caught.value)


def test_run_with_other_settings_than_the_nodes():
    settings = {"problem.name": "quadratic", "problem.dim": 7, "flower.patience": 0.1}
    grid = InProcessGrid(make_client_app({"quadratic": {"dim": 8}}), 2, settings)
    with fails("no-quorum", Halted) as caught:
        make_server_app()(grid, Context(1, 0, {}, RecordDict(), settings))
    assert ErrorCode.OTHER_SETTINGS.words in str(caught.value)
