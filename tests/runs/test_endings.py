"""How a run ends early, and who it can do without: target, budget, silent devices, the best."""

import json

import numpy as np
import pytest

import fedzo
from fedzo.errors import NoAnswer
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.runs import Status

ALGORITHM = fedzo.FedZO(
    learning_rate=0.05, local_steps=2, directions=3, direction_kind="orthogonal"
)
A_ROUND = 4 * 2 * (3 + 1)  # devices x steps x values
OPTIONS = {"algorithm": ALGORITHM, "evaluate_every": 2, "checkpoint_every": 1}


class Metered(FunctionObjective):
    """Distances to the device's number, by a black box that counts what it answers."""

    def __init__(self, max_queries=None):
        super().__init__(self.answer, dim=3, devices=4, max_queries=max_queries)
        self.answered = 0

    def initial(self):
        return np.ones(3)

    def answer(self, x, device):
        self.answered += 1
        return float(np.sum((x - device) ** 2))


def history(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_the_target_stops_at_the_first_evaluation_that_reaches_it():
    whole = fedzo.minimize(Metered(), rounds=20, **OPTIONS)
    losses = [record["train_loss"] for record in whole.history]
    target = (losses[3] + losses[4]) / 2
    result = fedzo.minimize(Metered(), rounds=20, target=target, **OPTIONS)
    assert (result.status, result.nit, result.success) == (Status.STOPPED, 8, True)
    assert result.message == f"reached the target {target:g} after round 8"
    assert result.fun == losses[4]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("extra", [1, A_ROUND - 1, A_ROUND, A_ROUND + 3])
def test_a_budget_is_spent_to_the_query_and_ends_on_a_whole_round(extra, workers):
    budget = 2 * 4 + 5 * A_ROUND + 2 * 4 + extra  # evaluations before rounds 0, 2 and 4
    problem = Metered(budget)
    result = fedzo.minimize(problem, rounds=20, workers=workers, **OPTIONS)
    assert problem.answered == problem.meter.queries == budget
    assert result.queries + result.evaluation_queries == budget
    assert result.success
    assert result.status is Status.STOPPED
    rounds = 5 + (extra >= A_ROUND)
    assert result.message == f"the budget of {budget} queries is spent after round {rounds}"
    same = fedzo.minimize(Metered(), rounds=rounds, **OPTIONS)
    assert result.last.tobytes() == same.last.tobytes()
    assert result.best.round == 4
    assert (
        result.best.fun
        == result.history[-1]["train_loss"]
        == min(record["train_loss"] for record in result.history)
    )


def test_a_larger_budget_goes_on_where_a_spent_one_stopped(tmp_path):
    first = fedzo.minimize(Metered(200), rounds=9, run_dir=tmp_path, **OPTIONS)
    assert first.nit < 9
    problem = Metered(1000)
    second = fedzo.minimize(problem, rounds=9, run_dir=tmp_path, resume=True, **OPTIONS)
    whole = fedzo.minimize(Metered(), rounds=9, **OPTIONS)
    assert second.last.tobytes() == whole.last.tobytes()
    assert problem.meter.queries == second.queries + second.evaluation_queries  # in vain ones too


def test_the_best_model_is_kept_when_later_ones_are_worse(tmp_path):
    wild = fedzo.FedZO(learning_rate=0.7, local_steps=1, directions=3, direction_kind="orthogonal")
    options = {**OPTIONS, "algorithm": wild}

    def bowl(x, device):
        return float(np.sum(np.abs(x - 0.2)))  # too long a step: it jumps about

    result = fedzo.minimize(bowl, np.ones(3), devices=2, rounds=13, **options)
    losses = {record["round"]: record["train_loss"] for record in result.history}
    assert result.best.round == min(losses, key=losses.get)
    assert bowl(result.best.x, 0) == result.best.fun == min(losses.values())
    half = {"run_dir": tmp_path, "devices": 2}
    fedzo.minimize(bowl, np.ones(3), rounds=7, **half, **options)
    resumed = fedzo.minimize(bowl, np.ones(3), rounds=13, resume=True, **half, **options)
    assert resumed.best.x.tobytes() == result.best.x.tobytes()
    assert resumed.best[1:] == result.best[1:]


class Silent(Metered):
    """Device 2 does not answer while it is away."""

    away = True

    def answer(self, x, device):
        if device == 2 and self.away:
            raise NoAnswer("the line is dead")
        return super().answer(x, device)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_silent_device_is_left_out_and_named(tmp_path, workers):
    result = fedzo.minimize(Silent(), rounds=2, run_dir=tmp_path, workers=workers, **OPTIONS)
    named = {"device": 2, "reason": "the line is dead"}
    first, last = history(tmp_path)
    assert first["dropped"] == [{"round": 0, **named}]  # missed at the evaluation
    assert last["dropped"] == [{"round": t, **named} for t in (1, 2, 2)]
    assert last["participants"] == 3
    assert first["train_loss"] == np.mean([3.0, 0.0, 12.0])  # of those who answered
    assert result.queries == 2 * (A_ROUND * 3 // 4 + 1)  # one that was not answered


@pytest.mark.parametrize("rounds", [1, 3])
def test_who_was_left_out_is_still_named_after_a_resume(tmp_path, rounds):
    """Between two evaluations: at the end of the first part there is one that is then dropped."""
    run = {**OPTIONS, "workers": 1}
    fedzo.minimize(Silent(), rounds=rounds, run_dir=tmp_path / "a", **run)
    fedzo.minimize(Silent(), rounds=4, run_dir=tmp_path / "a", resume=True, **run)
    fedzo.minimize(Silent(), rounds=4, run_dir=tmp_path / "b", **run)
    assert history(tmp_path / "a") == history(tmp_path / "b")


def test_nobody_there_is_a_clean_end(tmp_path):
    class Nobody(Metered):
        def answer(self, x, device):
            raise NoAnswer("gone")

    result = fedzo.minimize(Nobody(), rounds=2, run_dir=tmp_path, **OPTIONS)
    assert (result.status, result.success) == (Status.HALTED, False)
    assert result.message == "no device could be evaluated after round 0"
    assert (tmp_path / "checkpoint.npz").exists()


FALLING = {
    "linear": lambda x: -float(x.sum()),
    "square": lambda x: -float(x @ x),
    "far": lambda x: float(((x - 1e5) ** 2).sum()),
}


@pytest.mark.parametrize("name", FALLING)
@pytest.mark.parametrize("dim", [1, 2, 6, 30])
def test_a_search_without_a_budget_ends_on_a_function_without_a_minimum(name, dim):
    result = fedzo.minimize(FALLING[name], np.full(dim, 2.0), algorithm=fedzo.CMA())
    assert result.status is Status.HALTED
    assert "no minimum" in result.message
    assert result.fun < FALLING[name](np.full(dim, 2.0))


@pytest.mark.parametrize("slope", [0, 1, -1])
@pytest.mark.parametrize("search", [fedzo.CMA(), fedzo.Adaptive(), fedzo.LBFGS()])
def test_a_search_without_a_budget_ends_under_noise(search, slope):
    noise = np.random.default_rng(0)

    def fun(x):
        return slope * float(x @ x) + noise.normal()

    result = fedzo.minimize(fun, np.full(5, 2.0), algorithm=search)
    assert result.nfev < 20_000
    assert result.fun_error > 0 or not result.nit


@pytest.mark.parametrize("name", ["fedzo", "zo_sgd", "zone_s", "fedavg", "cma", "adaptive"])
def test_a_simulation_spends_whole_rounds_of_its_budget(name, tmp_path):
    """To one query, the first round too; a larger budget continues with the same bytes."""

    def run(folder, **options):
        problem = Quadratic(dim=3, devices=2)
        return fedzo.minimize(problem, method=name, run_dir=tmp_path / folder, **options)

    whole = run("whole", rounds=4, evaluate_every=1)
    after = [record["queries"] for record in whole.history]
    for rounds, budget in [(0, after[1] - 1), (1, after[1]), (2, after[3] - 1), (3, after[3])]:
        result = run(f"{rounds}", rounds=4, max_queries=budget, evaluate_every=1)
        if name == "adaptive":  # whose rounds cost more and less: it is as careful as the last one
            assert result.nit <= rounds
            assert result.queries == after[result.nit]
        else:
            assert (result.nit, result.queries) == (rounds, after[rounds])
        assert result.message.startswith(f"the budget of {budget:,} queries is spent")
        assert result.success or rounds or result.status is Status.STALLED
        again = run(f"{rounds}", rounds=4, evaluate_every=1, resume=True)
        assert again.last.tobytes() == whole.last.tobytes()
        assert history(tmp_path / f"{rounds}") == history(tmp_path / "whole")


def test_a_budget_that_does_not_cover_a_round_is_no_success():
    for problem in (Metered(12), Metered(8 + A_ROUND - 1)):
        result = fedzo.minimize(problem, rounds=3, **OPTIONS)
        assert (result.nit, result.success, result.status) == (0, False, Status.STALLED)
