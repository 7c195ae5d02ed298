"""Failures of the network and of the service: what is tried again, when, and what is told."""

import gzip
import shutil
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from serving import answer, raw, running

from fedzo.errors import ModelError
from fedzo.models import HttpModel, service
from raising import fails, rejects

HANG, CUT, HANG_UP = ({"kind": kind} for kind in ("hang", "cut", "hang up"))


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited, without the waiting."""
    waited = []
    monkeypatch.setattr(service, "sleep", waited.append)
    return waited


def test_the_wait_doubles_until_the_service_is_back(server, linear, waits):
    model = HttpModel(server.url, "linear", retries=4, backoff=0.25)
    server.plan(answer("", 500), answer("<html>", 502), CUT, HANG_UP)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert waits == [0.25, 0.5, 1.0, 2.0]
    assert server.counts()["requests"] == 5


def test_after_the_last_retry_the_failure_is_told(server, linear, waits):
    model = HttpModel(server.url, "linear", retries=2)
    server.plan(*[answer({"error": "no workers"}, 503)] * 3)
    with fails("http-503") as caught:
        model(linear.inputs)
    assert "no workers" in str(caught.value)
    assert waits == [0.5, 1.0]
    assert server.counts()["requests"] == 3


@pytest.mark.parametrize("status", [429, 503])
def test_the_service_says_how_long_to_wait(status, server, linear, waits):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    long_ago = "Sun, 06 Nov 1994 08:49:37 GMT"
    model = HttpModel(server.url, "linear", retries=4)
    server.plan(*(answer("", status, Retry_After=when) for when in ("7", later, long_ago, "soon")))
    model(linear.inputs)
    assert waits[0] == 7
    assert 50 < waits[1] <= 100
    assert waits[2:] == [0, 4.0]


def test_a_wait_of_hours_is_told_at_once(server, linear, waits):
    model = HttpModel(server.url, "linear")
    server.plan(answer("quota used up", 429, Retry_After="7200"))
    with fails("long-wait") as caught:
        model(linear.inputs)
    assert "quota used up" in str(caught.value)
    assert waits == []


@pytest.mark.parametrize("asked", ["9" * 30, "9" * 5_000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_an_absurd_wait_is_reported_at_once(asked, server, linear, waits):
    model = HttpModel(server.url, "linear")
    server.plan(answer("", 503, Retry_After=asked))
    with fails("long-wait"):
        model(linear.inputs)
    assert waits == []


@pytest.mark.parametrize("asked", ["-7", "Fri, 31 Dec 99999999999999999999 23:59:59 GMT", "1e9"])
def test_a_wait_that_says_nothing_is_passed_over(asked, server, linear, waits):
    server.plan(answer("", 503, Retry_After=asked))
    HttpModel(server.url, "linear")(linear.inputs)
    assert waits == [0.5]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_a_refusal_is_final(status, server, linear, waits):
    model = HttpModel(server.url, "linear")
    server.plan(answer({"error": "not like this"}, status))
    with fails(f"http-{status}") as caught:
        model(linear.inputs)
    assert "not like this" in str(caught.value)
    assert waits == []
    assert server.counts()["requests"] == 1


def test_a_redirect_is_not_followed(server):
    with fails("http-302"):
        HttpModel(f"{server.url}/moved", "linear")


@pytest.fixture
def impatient(server):
    """Return what makes a model that waits little, and asks nothing when it is made."""
    described = {"input_name": "x", "input_shape": (3, 4), "datatype": "FP32"}
    return lambda **how: HttpModel(server.url, "linear", output_name="logits", **described, **how)


def test_a_service_that_does_not_answer_in_time(server, linear, waits, impatient):
    server.plan(HANG, HANG)
    with fails("timeout"):
        impatient(timeout=0.1, retries=1)(linear.inputs)
    assert len(waits) == 1


def test_an_answer_in_time_after_one_that_was_not(server, linear, waits, impatient):
    """A busy machine may take more than one attempt: there are enough of them."""
    server.plan(HANG)
    scores = impatient(timeout=0.5, retries=20)(linear.inputs)
    np.testing.assert_allclose(scores, linear.logits(linear.inputs), atol=5e-6)
    assert waits[0] == 0.5


OK = "HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "1xx responses": raw("", 4_000 * "HTTP/1.1 100 Continue\r\n\r\n", -1),
    "early hints": raw("", 1_000 * "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n", -1),
    "a body of 1 GB": raw(f"{OK}Content-Length: 1073741824\r\n\r\n", 65_536 * " ", 16_384),
    "a body without an end": raw(f"{OK}\r\n", 65_536 * " ", -1),
    "chunks": raw(f"{OK}Transfer-Encoding: chunked\r\n\r\n", f"8000\r\n{32_768 * ' '}\r\n", -1),
    "small chunks": raw(f"{OK}Transfer-Encoding: chunked\r\n\r\n", 10_000 * "1\r\n \r\n", -1),
    "a chunk of 1 TB": raw(
        f"{OK}Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", 65_536 * " ", -1
    ),
    "trailers": raw(f"{OK}Transfer-Encoding: chunked\r\n\r\n0\r\n", 10_000 * "X: y\r\n", -1),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_does_not_end_is_cut_off(what, server, linear, waits):
    """64 KiB may come before the answer, 1 MiB around it, and 48 bytes for each of 55 scores."""
    most = 2**30 if what == "a body of 1 GB" else 65_536 + 2**20 + 48 * 55  # announced, received
    model = HttpModel(server.url, "linear")
    server.plan(ENDLESS[what])
    with fails("answer-too-long") as caught:
        model(linear.inputs)
    assert f"{most:,}" in str(caught.value)
    server.plan()
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert waits == []


@pytest.mark.parametrize(
    "head",
    [
        OK + 101 * "X: y\r\n" + "\r\n",
        f"{OK}X: {70_000 * 'y'}\r\n\r\n",
        "\x1b[2J\r\n",
        f"{OK}Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        f"{OK}Content-Length: 5\r\nContent-Length: 50000000\r\n\r\n",
    ],
)
def test_headers_that_cannot_be(head, server, linear, waits):
    model = HttpModel(server.url, "linear", retries=0)
    server.plan(raw(head))
    with pytest.raises(ModelError) as caught:
        model(linear.inputs)
    assert caught.value.code in ("invalid-http", "answer-too-long")
    assert str(caught.value).isprintable()


def test_a_gzip_bomb_is_not_opened(server, linear):
    bomb = gzip.compress(bytes(1 << 26), 1)
    head = f"{OK}Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    server.plan(raw(head + bomb.decode("latin-1")))
    with fails("encoding"):
        HttpModel(server.url, "linear")(linear.inputs)


def test_an_answer_that_drips_does_not_come_in_time(server, linear, waits, impatient):
    """Each byte comes within the time, the whole of them does not."""
    server.plan(raw(f"{OK}Content-Length: 100000\r\n\r\n", " ", -1, pause=0.01))
    with fails("timeout"):
        impatient(timeout=0.2, retries=0)(linear.inputs)


def test_the_limit_grows_with_what_is_asked(server, linear):
    """An answer of 4 MB is too long about 5 scores, and not about 500,000."""
    shape = [1, 100_000]
    text = {"outputs": [{"name": "logits", "datatype": "FP32", "shape": shape, "data": [0.5]}]}
    text["outputs"][0]["data"] = [0.123456789012345678901234567890] * 100_000
    server.plan(answer(text), answer(text))
    with fails("answer-too-long"):
        HttpModel(server.url, "linear")(linear.inputs[:1])
    unknown = {"input_name": "x", "input_shape": (3, 4), "datatype": "FP32"}
    model = HttpModel(server.url, "linear", output_name="logits", **unknown)
    assert model(linear.inputs[:1]).shape == (1, 100_000)


def test_nobody_listens(waits):
    with socket.socket() as reserved:  # bound, and not listening: nobody else takes the port
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with fails("no-connection"):
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
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://ho st",
        "http://host\r\nX: y",
        8000,
    ],
)
def test_addresses_that_cannot_be(url):
    with rejects("url"):
        HttpModel(url, "linear")


@pytest.mark.parametrize("url", ["http://me:pa55word@host", "http://host/?key=pa55word"])
def test_secrets_do_not_belong_in_the_address(url):
    with fails("secret-in-url") as caught:
        HttpModel(url, "linear")
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("value", ["s3cret\n", "s3crèt", "", " ", 3])
def test_headers_that_cannot_be_are_named_but_not_shown(value):
    with rejects("headers['Authorization']") as caught:
        HttpModel("http://127.0.0.1:1", "linear", headers={"Authorization": value})
    assert "s3cr" not in str(caught.value)
    with rejects("headers"):
        HttpModel("http://127.0.0.1:1", "linear", headers={"a b": "c"})


def test_a_token_may_come_from_the_environment(server, linear, monkeypatch):
    how = {"headers": {"Authorization": "Bearer ${FEDZO_TEST_TOKEN}"}}
    with fails("variable-not-set"):
        HttpModel(server.url, "guarded", **how)
    monkeypatch.setenv("FEDZO_TEST_TOKEN", "s3cret-token")
    assert HttpModel(server.url, "guarded", **how)(linear.inputs).shape == (11, 5)
    monkeypatch.setenv("FEDZO_TEST_TOKEN", "wr0ng-token")
    with fails("http-401") as caught:
        HttpModel(server.url, "guarded", **how)
    assert "wr0ng" not in str(caught.value)


def test_no_part_of_a_long_token_is_shown(server):
    """It is longer than a message shows of a word."""
    token = "s3cret" * 100
    with fails("http-401") as caught:
        HttpModel(server.url, "guarded", headers={"Authorization": f"Bearer {token}"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("timeout", 0), ("retries", -1), ("retries", 1.5), ("backoff", -1.0)]
)
def test_settings_that_cannot_be(key, value):
    with rejects(key):
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
        with fails("not-trusted"):
            HttpModel(server.url, "linear")
        assert waits == []
        for verify in (str(certificate[0]), False):
            model = HttpModel(server.url, "linear", verify=verify)
            np.testing.assert_allclose(model(linear.inputs), expected, atol=5e-6)


def test_certificates_that_are_not_there():
    with rejects("verify"):
        HttpModel("https://127.0.0.1:1", "linear", verify="nowhere.pem")
