"""The nodes' side: each computes for the devices that live on it."""

from fedzo.flower import make_client_app

app = make_client_app()  # the problem is the run configuration's: problem.name and so on
