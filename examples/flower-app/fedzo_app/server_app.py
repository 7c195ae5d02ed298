"""The server's side: it holds no data, and learns all that it needs from the nodes."""

from fedzo.flower import make_server_app

app = make_server_app()
