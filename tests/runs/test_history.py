"""The history: costs, losses over all devices, the promised fields."""

import numpy as np
import pytest
from running import SMALL, Spoiled, records
from threadpoolctl import threadpool_limits

from fedzo import FedZO, minimize
from fedzo.errors import Halted
from fedzo.problems import Quadratic
from raising import fails


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("participants", [None, 3])
@pytest.mark.parametrize(("difference", "values"), [("forward", 4 + 1), ("central", 2 * 4)])
def test_costs_have_closed_forms(difference, values, participants, dtype):
    problem = Quadratic(dim=7, devices=5)
    result = minimize(
        problem,
        np.zeros(7, dtype),
        rounds=5,
        evaluate_every=2,
        algorithm=FedZO(
            batch_size=3,
            directions=4,
            local_steps=2,
            participants=participants,
            difference=difference,
        ),
    )
    M, H, b1, d = participants or 5, 2, 3, 7
    assert [record["round"] for record in result.history] == [0, 2, 4, 5]
    for i, record in enumerate(result.history):
        t = record["round"]
        assert record["queries"] == t * M * H * b1 * values
        assert record["uplink_bytes"] == t * M * d * np.dtype(dtype).itemsize
        assert record["downlink_bytes"] == t * M * d * np.dtype(dtype).itemsize
        assert record["channel_uses"] == t * M * d
        assert record["participants"] == (M if t else 0)
        assert record["evaluation_queries"] == (i + 1) * 5
    last = result.history[-1]
    assert result.queries == last["queries"]
    assert result.nfev == last["queries"] + last["evaluation_queries"]
    assert result.uplink_bytes == last["uplink_bytes"]
    assert result.downlink_bytes == last["downlink_bytes"]
    assert result.evaluation_queries == last["evaluation_queries"]


def test_plain_function_is_asked_exactly_so_often():
    calls = []
    result = minimize(
        lambda x, device: calls.append(device) or 0.0,
        np.zeros(3),
        devices=4,
        rounds=3,
        algorithm=FedZO(batch_size=25, directions=2, local_steps=2, participants=2),
    )
    assert result.queries == 3 * 2 * 2 * (2 + 1)  # b1 plays no part
    assert result.evaluation_queries == 3 * 4  # the start twice, to see whether it is noisy
    assert len(calls) == result.queries + result.evaluation_queries


def test_softmax_evaluation_counts_every_sample(problems):
    result = minimize(problems["softmax"], algorithm=SMALL, rounds=1)
    assert result.evaluation_queries == 2 * 4000
    assert result.queries == 5 * 2 * 3 * 5


@pytest.mark.parametrize("name", ["quadratic", "softmax"])
def test_history_is_of_all_devices(name, problems, tmp_path):
    """f(x) is the mean over all N, whoever took part; metrics are those at the same x."""
    problem, points = problems[name], []
    result = minimize(
        problem,
        algorithm=FedZO(directions=4, local_steps=1, participants=1),
        rounds=3,
        evaluate_every=1,
        callback=lambda progress: points.append(progress.x),
        run_dir=tmp_path,
    )
    assert [record["round"] for record in result.history] == [0, 1, 2, 3]
    for record, x in zip(result.history, points, strict=True):
        with threadpool_limits(1, user_api="blas"):  # to the bit, as in a run
            losses, metrics = problem.losses(x, np.arange(10)), problem.metrics(x)
        assert len(set(losses.tolist())) > 1 or record["round"] == 0
        assert record["train_loss"] == losses.mean()
        assert metrics == {key: record[key] for key in metrics}
    assert result.fun == result.history[-1]["train_loss"]
    assert records(tmp_path) == result.history


def test_history_has_the_promised_fields(problems, tmp_path):
    minimize(problems["softmax"], algorithm=SMALL, rounds=1, run_dir=tmp_path)
    for record in records(tmp_path):
        assert list(record) == [
            "round",
            "train_loss",
            "test_loss",
            "test_accuracy",
            "participants",
            "queries",
            "evaluation_queries",
            "uplink_bytes",
            "downlink_bytes",
            "channel_uses",
            "seconds",
        ]
        kinds = {key: type(value) for key, value in record.items()}
        floats = ("train_loss", "test_loss", "test_accuracy", "seconds")
        assert all(kinds.pop(key) is float for key in floats)
        assert set(kinds.values()) == {int}


def test_metrics_may_be_numpy_numbers(tmp_path):
    class Measured(Spoiled):
        def metrics(self, x):
            return {"half": np.float32(0.5), "count": np.int64(3), "text": "no number"}

    result = minimize(Measured(), rounds=0, run_dir=tmp_path)
    record = result.history[0]
    assert (record["half"], record["count"]) == (0.5, 3.0)
    assert "text" not in record


def test_metrics_do_not_overwrite_the_history_s_own(tmp_path):
    class Bold(Spoiled):
        def metrics(self, x):
            return {"round": 7.0, "fine": 1.0}

    with fails("reserved-metric"):
        minimize(Bold(), rounds=1)


def test_answers_of_the_wrong_shape_are_told():
    class Turned(Spoiled):
        def values(self, points, batch):
            return super().values(points, batch).T

    class Short(Spoiled):
        def losses(self, x, devices):
            return np.zeros(len(devices) + 1)

    with pytest.raises(Halted, match="Turned"):  # something was evaluated
        minimize(Turned(), rounds=1, algorithm=FedZO(directions=3))
    with pytest.raises(Halted, match="Short"):
        minimize(Short(), rounds=1)
