"""What pytest leaves alone: examples whose library is an extra that is not installed."""

from importlib.util import find_spec

NEEDS = {"onnx": "onnxruntime", "sklearn": "sklearn", "torch": "torch"}
collect_ignore = [
    f"src/fedzo/models/{name}.py" for name, library in NEEDS.items() if find_spec(library) is None
]
if find_spec("torch") is None:
    collect_ignore += ["src/fedzo/core/streams_torch.py", "src/fedzo/problems/network.py"]
collect_ignore_glob = ["src/fedzo/flower/*.py"] if find_spec("flwr") is None else []
