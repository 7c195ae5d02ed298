"""Without the flower extra there is nothing here to test."""

from importlib.util import find_spec

collect_ignore_glob = ["*.py"] if find_spec("flwr") is None else []
