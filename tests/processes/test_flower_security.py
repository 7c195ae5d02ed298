"""Who gets into a federation with TLS and node keys, behind a proxy, and who does not."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import urllib.error
import urllib.request

import numpy as np
import pytest
from flower_federation import NAME, Federation, make_node_key
from loopback import APP, LIMIT, PATIENT, here, settings_of, until

from fedzo.runs import read_history

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Return a federation with TLS, node keys and the proxy, and one node with a key."""
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("nginx is not installed")
    with Federation(tmp_path_factory.mktemp("secured"), secure=True) as made:
        key, public = make_node_key(made.folder, "key")
        made.register(public)
        made.start_node("node", "partition-id=0 num-partitions=1", key)
        until(lambda: online(made) == 1)
        yield made


def online(federation):
    told = federation.flwr("supernode", "list", NAME, "--format", "json")
    nodes = json.loads(told[told.index("{") :])["nodes"]
    return sum(node["status"] == "online" for node in nodes)


def refusals(federation):
    """Return the status codes of the fleet calls that were not let through."""
    lines = (federation.folder / "log" / "traffic.log").read_text().splitlines()
    return [line for line in lines if "/v1/fleet/" in line and " 200 " not in line]


@pytest.mark.parametrize(
    ("key", "tls"), [(None, True), ("stranger", True), (None, False), ("stranger", False)]
)
def test_stranger_is_not_let_in(secured, key, tls):
    private = None if key is None else make_node_key(secured.folder, f"{key}-{tls}")[0]
    process = secured.start_node(
        f"stranger-{key}-{tls}", "partition-id=0 num-partitions=1", private, tls
    )
    before = len(refusals(secured))
    assert process.wait(LIMIT) != 0
    if (key, tls) != ("stranger", False):  # that one, Flower does not even try
        assert len(refusals(secured)) > before
    assert online(secured) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/get-nodes",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/",
    ],
)
def test_nothing_but_the_fleet_api_is_forwarded(secured, path):
    trust = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    request = urllib.request.Request(
        f"https://localhost:{secured.proxy_port}{path}", data=b"", method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, context=trust)
    assert caught.value.code == 403
    caught.value.close()


def test_proxy_survives_500_slow_clients(secured):
    """Fifty addresses with ten connections each: without a word, half a header, half a body."""
    trust = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    address = ("127.0.0.1", secured.proxy_port)
    half = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\n"
    body = half + b"Content-Length: 100000\r\n\r\n" + b"x" * 100
    with contextlib.ExitStack() as stack:
        slow = []
        for i in range(500):
            line = socket.create_connection(address, 20, (f"127.0.0.{2 + i // 10}", 0))
            if i % 5:  # TLS takes a while
                line = trust.wrap_socket(line, server_hostname="localhost")
                line.sendall(half if i % 2 else body)
            slow.append(stack.enter_context(line))
        for _ in range(5):
            assert status(secured, trust) in (400, 401, 403, 404, 415, 422)  # of the SuperLink
        assert online(secured) == 1
        assert len(slow) == 500
    assert "worker_connections are not enough" not in errors(secured)


def test_one_address_gets_few_connections(secured):
    """Hundred slow bodies from one address: most are turned away, and others get through."""
    trust = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    body = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\n"
    body += b"Content-Length: 100000\r\n\r\n" + b"x" * 100
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            plain = socket.create_connection(
                ("127.0.0.1", secured.proxy_port), 20, ("127.0.0.99", 0)
            )
            line = stack.enter_context(trust.wrap_socket(plain, server_hostname="localhost"))
            line.sendall(body)
        assert status(secured, trust) in (400, 401, 403, 404, 415, 422)
        until(lambda: errors(secured).count("limiting connections by zone") >= 60, 60)


def status(secured, trust):
    """Return the status of a request that is sent at once."""
    url = f"https://localhost:{secured.proxy_port}/v1/fleet/pull-messages"
    request = urllib.request.Request(url, data=b"", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, context=trust, timeout=20)
    caught.value.close()
    return caught.value.code


def errors(secured):
    return (secured.folder / "log" / "nginx-error.log").read_text()


def test_run_through_the_proxy(secured, tmp_path):
    folder = tmp_path / "run"
    settings = {**PATIENT, "uplink.name": "seeds", "run.rounds": 1, "run-dir": str(folder)}
    log = secured.folder / "log" / "traffic.log"

    def sent():
        """Return the bytes of what the node pushed, with HTTP's headers and hashes."""
        lines = [line.split() for line in log.read_text().splitlines()]
        return sum(int(length) for path, _, length, _ in lines if "/push-" in path)

    before = sent()
    run = secured.run(APP, settings)
    assert secured.wait(run, LIMIT) == "finished:completed", secured.log(run)
    last = list(read_history(folder / "history.jsonl"))[-1]
    result = here(settings_of(**{"uplink.name": "seeds", "run.rounds": 1}))
    assert np.allclose(np.load(folder / "model.npy"), result.x, rtol=0, atol=1e-7)
    # One round's answer, an introduction, a start (31 kB) and two evaluations.
    assert last["message_up_bytes"] < sent() - before < 150_000
