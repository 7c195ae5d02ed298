"""The test server as a process, told how to misbehave and asked what reached it."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

HERE = Path(__file__).parent


def answer(body, status=200, **headers):
    """Return the fault that is this answer."""
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"kind": "answer", "status": status, "body": text, "headers": headers}


def raw(head, repeated="", times=0, pause=0.0):
    """Return the fault that sends these bytes, and others again and again, for ever if times < 0.

    The connection stays open after them.
    """
    sent = {"head": head, "repeated": repeated, "times": times, "pause": pause}
    return {"kind": "raw"} | sent


class Server:
    """The test server's process: its address, its faults and its counts."""

    def __init__(self, url):
        self.url = url

    def plan(self, *faults):
        """Have the next inference requests meet these faults; forget all counts."""
        with urlopen(Request(f"{self.url}/faults", json.dumps(faults).encode())) as reply:
            reply.read()

    def counts(self):
        with urlopen(f"{self.url}/counts") as reply:
            return json.load(reply)


@contextmanager
def running(weights, *certificate):
    command = [sys.executable, str(HERE / "v2_server.py"), str(weights), *map(str, certificate)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip()
        yield Server(f"{'https' if certificate else 'http'}://127.0.0.1:{port}")
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
