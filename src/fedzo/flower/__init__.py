"""The same algorithms on Flower, as a real federation: see docs/deploy.md.

Nothing is sent to anybody but the federation's own hosts: Flower's telemetry is off unless
``FLWR_TELEMETRY_ENABLED`` says otherwise. The public names, listed in ``__init__.pyi``, are
imported when they are first used. May import: api, config, runs and what lies below them.
"""

import os

import lazy_loader

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
