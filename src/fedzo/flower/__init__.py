"""The same algorithms on Flower, as a real federation: see docs/deploy.md."""

from fedzo.flower.client import make_client_app
from fedzo.flower.federation import FlowerFederation
from fedzo.flower.grid import InProcessGrid
from fedzo.flower.settings import FlowerSettings

__all__ = ["FlowerFederation", "FlowerSettings", "InProcessGrid", "make_client_app"]
