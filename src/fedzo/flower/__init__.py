"""The same algorithms on Flower, as a real federation: see docs/deploy.md.

Nothing is sent to anybody but the federation's own hosts: Flower's telemetry is off unless
``FLWR_TELEMETRY_ENABLED`` says otherwise. May import: api, config, runs and what lies below them.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported

from fedzo.flower.client import make_client_app
from fedzo.flower.federation import FlowerFederation
from fedzo.flower.grid import InProcessGrid
from fedzo.flower.server import make_server_app
from fedzo.flower.strategy import FedzoStrategy
from fedzo.flower.torch import torch_client
from fedzo.runs.options import FlowerSettings

__all__ = [
    "FedzoStrategy",
    "FlowerFederation",
    "FlowerSettings",
    "InProcessGrid",
    "make_client_app",
    "make_server_app",
    "torch_client",
]
