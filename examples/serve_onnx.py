"""Serve an ONNX model by the Open Inference Protocol, to try an attack against an endpoint.

    python examples/serve_onnx.py FILE.onnx [PORT]

Triton, KServe and MLServer speak the same protocol; this one is for a first try on loopback.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
(image,), (score,) = session.get_inputs(), session.get_outputs()
path = f"/v2/models/{Path(sys.argv[1]).stem}"


def described(tensor):
    shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
    return {"name": tensor.name, "datatype": "FP32", "shape": shape}


class Handler(BaseHTTPRequestHandler):
    """Answers for one model."""

    protocol_version = "HTTP/1.1"  # connections are kept

    def do_GET(self):
        if self.path == "/v2":  # about the server: that it takes numbers as bytes
            return self.answer(200, {"name": "serve_onnx", "extensions": ["binary_tensor_data"]})
        found = self.path == path
        told = {"name": path.rsplit("/", maxsplit=1)[-1], "platform": "onnx"}
        told |= {"inputs": [described(image)], "outputs": [described(score)]}
        return self.answer(200 if found else 404, told if found else {"error": "no such model"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != f"{path}/infer":
            return self.answer(404, {"error": "no such model"})
        # The protocol's binary extension: the numbers follow the text as they are.
        text = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        (tensor,), data = json.loads(body[:text])["inputs"], body[text:]
        numbers = np.frombuffer(data, "<f4") if data else np.array(tensor["data"], np.float32)
        scores = session.run(None, {image.name: numbers.reshape(tensor["shape"])})[0]
        output = {"name": score.name, "datatype": "FP32", "shape": list(scores.shape)}
        return self.answer(200, {"outputs": [output | {"data": scores.ravel().tolist()}]})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
