"""The nodes' side: each computes for the devices that live on it, and only what is listed here."""

from fedzo.flower import make_client_app

# The problems that a run may name, with their settings. A node's own configuration may have others
# instead: a run cannot.
app = make_client_app({"softmax": {"devices": 50}, "fedzo_app.black_box:problem": {"devices": 3}})
