"""What the callbacks write is read back by the libraries themselves."""

import csv
import sys

import numpy as np
import pytest

import fedzo
from fedzo.runs.callbacks import CSV, EarlyStopping, MLflow, TensorBoard, WandB
from raising import fails, rejects

SETTINGS = {"devices": 3, "rounds": 5, "evaluate_every": 2}
EVALUATED = [0, 2, 4, 5]


def distance(x, device):
    return float(np.sum((x - device) ** 2))


def expected(result, key):
    return [(record["round"], pytest.approx(record[key])) for record in result.history]


def scalars(folder, key):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    found = events.EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.tensor_proto.float_val[0]) for event in found.Tensors(key)]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    callback = TensorBoard(tmp_path)
    result = fedzo.minimize(distance, np.ones(2), callback=callback, **SETTINGS)
    assert [record["round"] for record in result.history] == EVALUATED
    for key in ("train_loss", "queries", "uplink_bytes"):
        assert scalars(tmp_path, key) == expected(result, key)


def test_tensorboard_goes_on_with_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    run = {**SETTINGS, "run_dir": tmp_path / "run", "callback": TensorBoard(tmp_path / "log")}
    fedzo.minimize(distance, np.ones(2), **{**run, "rounds": 2})
    result = fedzo.minimize(distance, np.ones(2), resume=True, **run)
    assert dict(scalars(tmp_path / "log", "train_loss")) == dict(expected(result, "train_loss"))


def test_csv_has_what_the_history_has_also_after_a_resume(tmp_path):
    run = {**SETTINGS, "run_dir": tmp_path / "run", "callback": CSV(tmp_path / "log.csv")}
    fedzo.minimize(distance, np.ones(2), **{**run, "rounds": 2})
    result = fedzo.minimize(distance, np.ones(2), resume=True, **run)
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for key in ("round", "train_loss", "queries", "seconds"):
        assert [float(row[key]) for row in rows] == [record[key] for record in result.history]


@pytest.mark.parametrize(("key", "sign"), [("train_loss", 1), ("test_accuracy", -1)])
def test_early_stopping_waits_for_its_patience(key, sign):
    """Of the values 5, 4, 4.5, 3.95, 3.9, ... the last that improves by 0.2 is the second."""
    values = [5, 4, 4.5, 3.95, 3.9, 3.85, 3.82]
    stop = EarlyStopping(key, patience=3, min_delta=0.2)
    for _ in range(2):
        told = [
            stop(fedzo.Progress(t, 9, np.zeros(1), t, 0.0, {"round": t, key: sign * value}))
            for t, value in enumerate(values)
        ]
        assert told[:5] == [False, False, False, False, True]
        assert not stop(fedzo.Progress(9, 9, np.zeros(1), 9, 0.0, None))
        stop.close()  # another run
    with rejects("key"):
        EarlyStopping("tset_loss")(fedzo.Progress(0, 9, np.zeros(1), 0, 0.0, {"test_loss": 1.0}))
    with rejects("patience"):
        EarlyStopping(patience=0)


def test_a_run_that_was_stopped_early_says_so():
    stop = EarlyStopping(patience=1, min_delta=1e9)
    result = fedzo.minimize(distance, np.ones(2), callback=stop, **SETTINGS)
    assert result.history[-1]["round"] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    callback = WandB(project="fedzo", mode="offline", dir=str(tmp_path), config={"seed": 0})
    seen = []
    result = fedzo.minimize(
        distance,
        np.ones(2),
        callback=[callback, lambda progress: seen.append(dict(callback._open.summary))],
        **SETTINGS,
    )
    assert callback._open is None
    assert seen[-1]["train_loss"] == pytest.approx(result.history[-1]["train_loss"])
    files = [path.name for path in tmp_path.rglob("*.wandb")]
    assert len(files) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow and what it imports, about each other
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy, for MLflow's store, is not installed")
    callback = MLflow(
        "sites",
        tracking_uri=f"sqlite:///{tmp_path}/store.db",
        run_name="first",
        params={"learning_rate": 0.001},
    )
    result = fedzo.minimize(distance, np.ones(2), callback=callback, **SETTINGS)
    client = callback._client
    for key in ("train_loss", "queries", "seconds"):
        history = client.get_metric_history(callback.run_id, key)
        assert [(metric.step, metric.value) for metric in history] == expected(result, key)
    run = client.get_run(callback.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params == {"learning_rate": "0.001"}
    first = callback.run_id
    fedzo.minimize(distance, np.ones(2), callback=callback, **SETTINGS)
    assert callback.run_id != first  # another run, of the same experiment
    assert client.get_run(callback.run_id).info.experiment_id == run.info.experiment_id


@pytest.mark.parametrize(
    ("make", "module"), [(lambda: TensorBoard("log"), "tensorboard"), (MLflow, "mlflow")]
)
def test_a_missing_library_is_told_before_the_run(make, module, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with fails("missing-extra") as caught:
        make()
    assert "fedzo[track]" in str(caught.value)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_history_reads_straight_into_a_table(library, tmp_path):
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    fails_at = {"device": 1}

    def flaky(x, device):
        return np.nan if device == fails_at["device"] else distance(x, device)

    run = {**SETTINGS, "run_dir": tmp_path, "on_failure": "leave_out"}
    with pytest.warns(fedzo.errors.FedzoWarning, match="device 1"):
        result = fedzo.minimize(flaky, np.ones(2), **run)
    path = tmp_path / "history.jsonl"
    table = frames.read_json(path, lines=True) if library == "pandas" else frames.read_ndjson(path)
    assert table["round"].to_list() == EVALUATED
    for key in ("train_loss", "queries", "seconds"):
        exact = [record[key] for record in result.history]
        assert table[key].to_list() == pytest.approx(exact, rel=1e-14)  # pandas rounds
    assert table["dropped"].to_list()[0] == [
        {"round": 0, "device": 1, "reason": "the function returned nan"}
    ]
