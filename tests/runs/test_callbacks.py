"""What the callbacks write is read back by the libraries themselves."""

import sys

import numpy as np
import pytest

import fedzo
from fedzo.runs.callbacks import MLflow, TensorBoard
from raising import fails

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
