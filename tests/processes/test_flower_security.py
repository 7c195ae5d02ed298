"""Who gets into a federation with TLS and node keys, behind a proxy, and who does not."""

import json
import os
import shutil
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
    lines = (federation.folder / "traffic.log").read_text().splitlines()
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


def test_run_through_the_proxy(secured, tmp_path):
    folder = tmp_path / "run"
    settings = {**PATIENT, "uplink.name": "seeds", "run.rounds": 1, "run-dir": str(folder)}
    log = secured.folder / "traffic.log"

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
