"""The same algorithms on Flower, as a real federation: see docs/deploy.md.

Flower's telemetry is off by default (``FLWR_TELEMETRY_ENABLED``), so messages go to the hosts of
the federation only. The public names, listed in ``__init__.pyi``, are imported on first use.
May import: api, config, runs and the rooms below them.
"""

import os

import lazy_loader

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
