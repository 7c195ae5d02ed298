import pytest

pytest.importorskip("flwr", reason="the flower extra is not installed")
