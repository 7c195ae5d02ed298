"""For all tests: Ctrl-C works, and examples whose library is not installed are left alone."""

import signal
from importlib.util import find_spec

# A shell has what it starts in the background ignore Ctrl-C, and so would all that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NEEDS = {"onnx": "onnxruntime", "sklearn": "sklearn", "torch": "torch"}
collect_ignore = [
    f"src/fedzo/models/{name}.py" for name, library in NEEDS.items() if find_spec(library) is None
]
if find_spec("torch") is None:
    collect_ignore += ["src/fedzo/core/streams_torch.py", "src/fedzo/problems/network.py"]
collect_ignore_glob = ["src/fedzo/flower/*.py"] if find_spec("flwr") is None else []
