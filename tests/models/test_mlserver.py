"""The same protocol from a server that others wrote: MLServer, where its command is found."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from fedzo.models import HttpModel
from raising import fails

pytestmark = pytest.mark.slow
RUNTIME = """
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Linear(MLModel):
    async def load(self):
        self.arrays = np.load(self.settings.parameters.uri)
        return True

    async def predict(self, request):
        inputs = NumpyCodec.decode_input(request.inputs[0])
        logits = inputs.reshape(len(inputs), -1) @ self.arrays["weights"] + self.arrays["bias"]
        output = NumpyCodec.encode_output("logits", logits)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def mlserver(weights_file, tmp_path_factory):
    command = shutil.which("mlserver")
    if command is None:
        pytest.skip("needs the mlserver command: pip install mlserver")
    folder = tmp_path_factory.mktemp("mlserver")
    http, grpc = free_ports(2)
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc}
    settings |= {"metrics_endpoint": None, "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    described = {"linear": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 4]}], "bare": []}
    for name, inputs in described.items():
        (folder / name).mkdir()
        model = {"name": name, "implementation": "linear_runtime.Linear", "inputs": inputs}
        model["parameters"] = {"uri": str(weights_file)}
        (folder / name / "model-settings.json").write_text(json.dumps(model))
        (folder / name / "linear_runtime.py").write_text(RUNTIME)
    url = f"http://127.0.0.1:{http}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([command, "start", folder], stdout=log, stderr=log, cwd=folder)
    try:
        wait_for(url, process, folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url, process, log):
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            urlopen(f"{url}/v2/health/ready").close()
        except URLError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"mlserver did not start: {log.read_text()[-2000:]}")


def test_scores_are_the_models_own_and_counted(mlserver, linear):
    model = HttpModel(mlserver, "linear", max_batch=4)
    assert model.input_shape == (3, 4)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert model.queries == model.sent == 11


def test_a_model_that_describes_nothing(mlserver, linear):
    model = HttpModel(mlserver, "bare", input_name="x", datatype="FP32", input_shape=(3, 4))
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)


def test_its_errors_are_told(mlserver):
    with fails("http-404"):
        HttpModel(mlserver, "nobody")
    model = HttpModel(mlserver, "bare", input_name="x", datatype="FP32", retries=0)
    with fails("http-500"):
        model(np.zeros((1, 7)))
