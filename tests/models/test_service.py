"""Failures of the network and of the service: what is tried again, when, and what is told."""

import shutil
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from conftest import running

from fedzo.errors import InvalidValue, ModelError, UsageError
from fedzo.models import HttpModel, service

HANG, CUT, HANG_UP = ({"kind": kind} for kind in ("hang", "cut", "hang up"))


def failing(status, body="", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"kind": "answer", "status": status, "body": body, "headers": headers}


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited, without the waiting."""
    waited = []
    monkeypatch.setattr(service, "sleep", waited.append)
    return waited


def test_the_wait_doubles_until_the_service_is_back(server, linear, waits):
    model = HttpModel(server.url, "linear", retries=4, backoff=0.25)
    server.plan(failing(500), failing(502, "<html>"), CUT, HANG_UP)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert waits == [0.25, 0.5, 1.0, 2.0]
    assert server.counts()["requests"] == 5


def test_after_the_last_retry_the_failure_is_told(server, linear, waits):
    model = HttpModel(server.url, "linear", retries=2)
    server.plan(*[failing(503, '{"error": "no workers"}')] * 3)
    with pytest.raises(ModelError, match=r"/infer: 503: no workers \(after 3 attempts\)"):
        model(linear.inputs)
    assert waits == [0.5, 1.0]
    assert server.counts()["requests"] == 3


@pytest.mark.parametrize("status", [429, 503])
def test_the_service_says_how_long_to_wait(status, server, linear, waits):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    long_ago = "Sun, 06 Nov 1994 08:49:37 GMT"
    model = HttpModel(server.url, "linear", retries=4)
    server.plan(*(failing(status, Retry_After=when) for when in ("7", later, long_ago, "soon")))
    model(linear.inputs)
    assert waits[0] == 7
    assert 50 < waits[1] <= 100
    assert waits[2:] == [0, 4.0]


def test_a_wait_of_hours_is_told_at_once(server, linear, waits):
    model = HttpModel(server.url, "linear")
    server.plan(failing(429, "quota used up", Retry_After="7200"))
    with pytest.raises(ModelError, match=r"429: quota used up \(asks to wait 7,200 s\)"):
        model(linear.inputs)
    assert waits == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_a_refusal_is_final(status, server, linear, waits):
    model = HttpModel(server.url, "linear")
    server.plan(failing(status, '{"error": "not like this"}'))
    with pytest.raises(ModelError, match=f"{status}: not like this$"):
        model(linear.inputs)
    assert waits == []
    assert server.counts()["requests"] == 1


def test_a_redirect_is_not_followed(server):
    with pytest.raises(ModelError, match=r"302: redirected to http://127.0.0.1/elsewhere"):
        HttpModel(f"{server.url}/moved", "linear")


@pytest.fixture
def impatient(server):
    """Return what makes a model that waits little, and asks nothing when it is made."""
    described = {"input_name": "x", "input_shape": (3, 4), "datatype": "FP32"}
    return lambda **how: HttpModel(server.url, "linear", output_name="logits", **described, **how)


def test_a_service_that_does_not_answer_in_time(server, linear, waits, impatient):
    server.plan(HANG, HANG)
    with pytest.raises(ModelError, match=r"no answer within 0.1 s \(after 2 attempts\)"):
        impatient(timeout=0.1, retries=1)(linear.inputs)


def test_an_answer_in_time_after_one_that_was_not(server, linear, waits, impatient):
    """A busy machine may take more than one attempt: there are enough of them."""
    server.plan(HANG)
    scores = impatient(timeout=0.5, retries=20)(linear.inputs)
    np.testing.assert_allclose(scores, linear.logits(linear.inputs), atol=5e-6)
    assert waits[0] == 0.5


def test_nobody_listens(waits):
    with socket.socket() as reserved:  # bound, and not listening: nobody else takes the port
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(ModelError, match=r"no connection: Connection refused \(after 1 att"):
            HttpModel(url, "linear", retries=0)


def test_connections_are_kept_and_one_that_was_closed_is_no_failure(server, linear):
    model = HttpModel(server.url, "linear", retries=0)
    server.plan(None, None, {"kind": "close after"}, None)
    for _ in range(4):
        np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    counts = server.counts()
    assert counts["requests"] == 4
    assert counts["connections"] == 1 + 1  # the one after the close, and the one that counts


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("127.0.0.1:8000", "url = '127.0.0.1:8000': must be like 'http://host:port'"),
        ("ftp://host", "url = 'ftp://host'"),
        ("http://", "url = 'http://'"),
        ("http://host:port", "url = 'http://host:port'"),
        ("http://host:99999", "url = "),
        ("http://ho st", "url = "),
        ("http://host\r\nX: y", "url = "),
        (8000, "url = 8000"),
    ],
)
def test_addresses_that_cannot_be(url, shown):
    with pytest.raises(InvalidValue, match=f"^{shown}"):
        HttpModel(url, "linear")


@pytest.mark.parametrize("url", ["http://me:pa55word@host", "http://host/?key=pa55word"])
def test_secrets_do_not_belong_in_the_address(url):
    with pytest.raises(UsageError, match="use headers") as caught:
        HttpModel(url, "linear")
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("value", ["s3cret\n", "s3crèt", "", " ", 3])
def test_headers_that_cannot_be_are_named_but_not_shown(value):
    with pytest.raises(InvalidValue, match=r"headers\['Authorization'\] = \*\*\*") as caught:
        HttpModel("http://127.0.0.1:1", "linear", headers={"Authorization": value})
    assert "s3cr" not in str(caught.value)
    with pytest.raises(InvalidValue, match="headers = 'a b'"):
        HttpModel("http://127.0.0.1:1", "linear", headers={"a b": "c"})


def test_a_token_may_come_from_the_environment(server, linear, monkeypatch):
    how = {"headers": {"Authorization": "Bearer ${FEDZO_TEST_TOKEN}"}}
    with pytest.raises(UsageError, match="the environment variable FEDZO_TEST_TOKEN is not set"):
        HttpModel(server.url, "guarded", **how)
    monkeypatch.setenv("FEDZO_TEST_TOKEN", "s3cret-token")
    assert HttpModel(server.url, "guarded", **how)(linear.inputs).shape == (11, 5)
    monkeypatch.setenv("FEDZO_TEST_TOKEN", "wr0ng-token")
    with pytest.raises(ModelError, match=r"401: token \*\*\* refused"):
        HttpModel(server.url, "guarded", **how)


@pytest.mark.parametrize(
    ("key", "value"), [("timeout", 0), ("retries", -1), ("retries", 1.5), ("backoff", -1.0)]
)
def test_settings_that_cannot_be(key, value):
    with pytest.raises(InvalidValue, match=f"^{key} = "):
        HttpModel("http://127.0.0.1:1", "linear", **{key: value})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of this machine's own, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_over_https_the_certificate_is_checked(certificate, weights_file, linear, waits):
    expected = linear.logits(linear.inputs)
    with running(weights_file, *certificate) as server:
        with pytest.raises(ModelError, match=r"is not trusted: self.signed certificate"):
            HttpModel(server.url, "linear")
        assert waits == []
        for verify in (str(certificate[0]), False):
            model = HttpModel(server.url, "linear", verify=verify)
            np.testing.assert_allclose(model(linear.inputs), expected, atol=5e-6)


def test_certificates_that_are_not_there():
    with pytest.raises(InvalidValue, match=r"^verify = 'nowhere.pem': must be true, false or"):
        HttpModel("https://127.0.0.1:1", "linear", verify="nowhere.pem")
