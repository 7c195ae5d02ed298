"""A small server of the Open Inference Protocol, version 2, that can be told to misbehave.

    python v2_server.py weights.npz [cert.pem key.pem]

It serves a linear model, prints its port and ends when its standard input does. ``POST
/faults`` takes a list of faults, one for each of the next inference requests (null: none),
and sets the counts to zero; ``GET /counts`` tells what reached it.
"""

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np

TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
LENGTH = "Inference-Header-Content-Length"
TOKEN = "Bearer s3cret-token"


def tensor(name, shape, datatype="FP32"):
    return {"name": name, "datatype": datatype, "shape": shape}


LOGITS, PROBABILITIES = tensor("logits", [-1, 5]), tensor("probabilities", [-1, 5])
DOUBLES = tensor("logits", [-1, 5], "FP64")
MODELS = {
    "linear": {"inputs": [tensor("x", [-1, 3, 4])], "outputs": [LOGITS]},
    "double": {"inputs": [tensor("x", [-1, 12], "FP64")], "outputs": [DOUBLES]},
    "half": {"inputs": [tensor("x", [-1, 12], "FP16")], "outputs": [LOGITS]},
    "both": {"inputs": [tensor("x", [-1, 3, 4])], "outputs": [LOGITS, PROBABILITIES]},
    "fixed": {"inputs": [tensor("x", [4, 3, 4])], "outputs": [LOGITS]},
    "bare": {"inputs": [], "outputs": []},
    "bytes": {"inputs": [tensor("x", [-1, 3, 4], "UINT8")], "outputs": [LOGITS]},
    "two": {"inputs": [tensor("x", [-1, 3]), tensor("y", [-1, 3])], "outputs": [LOGITS]},
    "odd": {"inputs": [{"title": "x"}], "outputs": [LOGITS]},
    "huge": {"inputs": [tensor("x", [10**12, 3, 4])], "outputs": [LOGITS]},
    "wide": {"inputs": [tensor("x", [-1, 10**30])], "outputs": [LOGITS]},
    "endless": {"inputs": [tensor("x", [-1, float("inf")])], "outputs": [LOGITS]},
    "control": {"inputs": [tensor("x", [-1, 3, 4], "\x1b[2J" * 1000)], "outputs": [LOGITS]},
}  # fmt: skip


class State:
    lock = threading.Lock()
    release = threading.Event()  # ends the answers that hang
    faults: ClassVar[list] = []
    counts: ClassVar[dict] = {}

    @classmethod
    def reset(cls, faults):
        with cls.lock:
            cls.release.set()
            cls.release = threading.Event()
            cls.faults = list(faults)
            cls.counts = {"requests": 0, "rows": 0, "metadata": 0, "sizes": [], "connections": 0}
            cls.counts["binary"] = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    weights = bias = None

    def setup(self):
        super().setup()
        with State.lock:
            State.counts["connections"] += 1

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/counts":
            return self.reply(200, json.dumps(State.counts))
        if self.path == "/moved/v2/models/linear":
            return self.reply(302, "", {"Location": "http://127.0.0.1/elsewhere"})
        if self.path == "/v2":
            return self.reply(200, json.dumps({"name": "s", "extensions": ["binary_tensor_data"]}))
        with State.lock:
            State.counts["metadata"] += 1
        described = self.model()
        return described and self.reply(200, json.dumps({"name": "m", **described}))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/faults":
            State.reset(json.loads(body))
            return self.reply(200, "{}")
        described = self.model("/infer")
        return described and self.infer(described, body)

    def model(self, end=""):
        """Return the model that the path names, or answer that there is none."""
        path = self.path.removesuffix(end).removeprefix("/unannounced")  # where there is no /v2
        name = path.removeprefix("/v2/models/").removesuffix("/versions/7")
        if name == "guarded":
            if self.headers["Authorization"] != TOKEN:
                echo = f"token {self.headers['Authorization']} refused"
                return self.reply(401, json.dumps({"error": echo}))
            name = "linear"
        if name not in MODELS:
            return self.reply(404, json.dumps({"error": f"there is no model {name}"}))
        return MODELS[name]

    def infer(self, described, body):
        head = int(self.headers.get(LENGTH, len(body)))
        request = json.loads(body[:head])
        (given,) = request["inputs"]
        with State.lock:
            counts = State.counts
            counts["requests"] += 1
            counts["rows"] += given["shape"][0]
            counts["sizes"].append(given["shape"][0])
            counts["binary"] += head < len(body)
            fault = State.faults.pop(0) if State.faults else None
            release = State.release
        kind = (fault or {}).get("kind")
        if kind == "hang":
            release.wait(30)
        if kind in ("hang", "hang up"):
            self.close_connection = True
            return self.connection.shutdown(2)
        if kind == "answer":
            return self.reply(fault["status"], fault["body"], fault.get("headers", {}))
        if kind == "raw":
            return self.send_raw(fault, release)
        self.answer(described, request, given, body[head:], cut=kind == "cut")
        if kind == "close after":  # without having said so
            self.close_connection = True
        return None

    def send_raw(self, fault, release):
        """Send bytes until the client has had enough."""
        self.close_connection = True
        times, piece = fault["times"], fault["repeated"].encode("latin-1")
        try:
            self.wfile.write(fault["head"].encode("latin-1"))
            while times != 0:
                self.wfile.write(piece)
                times -= 1
                if release.wait(fault["pause"]):
                    break
            release.wait(30)
        except OSError:
            pass

    def answer(self, described, request, given, raw, cut):
        kind = TYPES[given["datatype"]]
        declared = described["inputs"][0]["datatype"] if described["inputs"] else "FP32"
        if given["datatype"] != declared or (described["inputs"] and given["name"] != "x"):
            return self.reply(400, json.dumps({"error": "wrong input"}))
        if "binary_data_size" in given.get("parameters", {}):
            assert given["parameters"]["binary_data_size"] == len(raw)
            x = np.frombuffer(raw, kind)
        else:
            x = np.array(given["data"], kind)
        x = x.reshape(given["shape"][0], -1).astype(np.float64)
        logits = x @ self.weights + self.bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = {"logits": logits, "probabilities": powers / powers.sum(axis=1, keepdims=True)}
        wanted = request.get("outputs") or described["outputs"] or [LOGITS]
        binary = request.get("parameters", {}).get("binary_data_output")
        outputs, tail = [], b""
        for output in wanted:
            datatype = "FP64" if declared == "FP64" else "FP32"
            array = scores[output["name"]].astype(TYPES[datatype])
            answer = tensor(output["name"], list(array.shape), datatype)
            if binary:
                answer["parameters"] = {"binary_data_size": array.nbytes}
                tail += array.tobytes()
            else:
                answer["data"] = array.ravel().tolist()
            outputs.append(answer)
        text = json.dumps({"model_name": "m", "outputs": outputs}).encode()
        headers = {LENGTH: str(len(text))} if binary else {}
        return self.reply(200, text + tail, headers, cut)

    def reply(self, status, body, headers=(), cut=False):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)


def main(weights, *certificate):
    with np.load(weights) as arrays:
        Handler.weights, Handler.bias = arrays["weights"], arrays["bias"]
    State.reset([])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
