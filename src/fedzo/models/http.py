"""A model behind an HTTP endpoint that speaks the Open Inference Protocol, version 2."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Unpack
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike

from fedzo.errors import InvalidValue, ModelError, check_count, one_of, require
from fedzo.models.base import Array, Common, Model
from fedzo.models.service import Reply, Service, read_json, shortened

_TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_WHOLE = {"INT64": "<i8", "INT32": "<i4", "INT16": "<i2", "UINT8": "u1"}  # labels may be these
_HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "binary_tensor_data"  # what a service calls the extension when it announces it
_DESCRIPTION_BYTES = 1 << 20  # a service's description of itself or of a model
_SCORE_BYTES = 48  # a score as text, with its comma and an indentation
_MANY_CLASSES = 1 << 15  # as long as the number of classes is not known
_UNKNOWN_BYTES = 1 << 26  # the longest answer as long as no answer has been seen
_LARGEST_BATCH = 1 << 16  # that a service may prescribe: a smaller one is filled up
_LARGEST_INPUT = 1 << 31  # numbers


class HttpModel(Model):
    """A model that is served, as by Triton, KServe or MLServer.

    What is not given of names, shape and type is asked of the service once, when the model is
    made. Any number of threads may ask at a time, each over a connection of its own.

    ``queries`` and the budget count inputs, each once, however many attempts its answer took.
    An attempt that failed may have been worked for all the same, so whoever pays by the
    input looks at ``sent``, which counts every time that an input went out: the bill is
    between the two, and with ``retries=0`` they are the same.

    Parameters
    ----------
    url
        Where the service is: what comes before "/v2" in its addresses.
    model
        The model's name there.
    version
        Its version there; None: the service chooses.
    outputs
        What the scores are: "logits", "probabilities", "log-probabilities" or "labels".
    input_name, datatype
        The input's name and type, "FP16", "FP32" or "FP64". None: asked of the service.
    output_name
        Which output the scores are. None: the only one.
    binary
        Whether numbers travel as bytes, not as text: the protocol's binary tensor extension,
        several times faster for images; FP16 needs it. None: if the service announces it,
        which is asked along with the rest; as text if nothing has to be asked.
    in_flight
        How many requests may be under way at a time: while the service works on one, the next is
        on its way. A batch goes in so many parts, or in those that ``max_batch`` makes of it.
    headers, timeout, retries, backoff, verify
        How to ask: see :class:`~fedzo.models.service.Service`. The values of headers are
        never shown.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`. The shape is asked of the service if it is not given.

    Examples
    --------
    With everything given, nothing is asked before the first query:

    >>> HttpModel(
    ...     "http://127.0.0.1:8000", "resnet", headers={"Authorization": "Bearer secret"},
    ...     input_name="images", input_shape=(3, 32, 32), datatype="FP32", output_name="logits",
    ... )
    HttpModel('http://127.0.0.1:8000/v2/models/resnet', outputs='logits')
    """

    def __init__(
        self,
        url: str,
        model: str,
        outputs: str = "logits",
        *,
        version: str | None = None,
        input_name: str | None = None,
        output_name: str | None = None,
        datatype: str | None = None,
        binary: bool | None = None,
        in_flight: int = 4,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        backoff: float = 0.5,
        verify: bool | str = True,
        **common: Unpack[Common],
    ) -> None:
        require(isinstance(model, str) and bool(model), "model", model, "the model's name")
        self._service = Service(
            url, headers=headers, timeout=timeout, retries=retries, backoff=backoff, verify=verify
        )
        self._path = f"/v2/models/{quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{quote(str(version), safe='')}"
        super().__init__(self._service.url + self._path, outputs, **common)
        check_count("in_flight", in_flight)
        self.in_flight = in_flight
        self._input, self._output, self._datatype = input_name, output_name, datatype
        self._columns: int | None = None  # of all outputs, if the service describes them
        if None in (input_name, output_name, datatype, self.input_shape):
            self._ask()
            binary = self._takes_binary() if binary is None else binary
        self._binary = bool(binary)
        types = [name for name in _TYPES if binary or name != "FP16"]
        wanted = one_of(types) + ("" if binary else ", or 'FP16' with binary = true")
        require(self._datatype in types, "datatype", self._datatype, wanted)

    @property
    def sent(self) -> int:
        """How many inputs went out to the service, counting each attempt."""
        return self._service.sent

    def _scores(self, batch: Array) -> ArrayLike:
        batch = np.ascontiguousarray(batch, _TYPES[str(self._datatype)])
        body, headers = self._request(batch)
        reply = self._service.request(
            "POST",
            f"{self._path}/infer",
            body,
            headers,
            most_bytes=self._most_bytes(len(batch)),
            cost=len(batch),
        )
        return self._tensor(reply)

    def _most_bytes(self, rows: int) -> int:
        """Return how long an answer about so many inputs may be."""
        text = _DESCRIPTION_BYTES  # around the scores
        if self.classes is not None:
            return text + rows * max(self.classes, self._columns or 0) * _SCORE_BYTES
        scores = rows * (self._columns or _MANY_CLASSES)
        return text + min(scores * _SCORE_BYTES, _UNKNOWN_BYTES)

    def _takes_binary(self) -> bool:
        """Return whether the service announces the binary extension."""
        try:
            reply = self._service.request("GET", "/v2", most_bytes=_DESCRIPTION_BYTES)
            return _BINARY in self._json(reply)["extensions"]
        except (ModelError, KeyError, TypeError):  # does not say
            return False

    def _ask(self) -> None:
        """Fill in what the caller did not say by what the service says of the model."""
        reply = self._service.request("GET", self._path, most_bytes=_DESCRIPTION_BYTES)
        described = self._json(reply)
        inputs, outputs = (described.get(key) or [] for key in ("inputs", "outputs"))
        given = {"input_name": self._input, "datatype": self._datatype}
        try:
            if self._input is not None and inputs:
                known = [str(each["name"]) for each in inputs]
                require(self._input in known, "input_name", self._input, shortened(one_of(known)))
                inputs = [each for each in inputs if each["name"] == self._input]
            if len(inputs) == 1:
                self._input = str(inputs[0]["name"])
                self._datatype = self._datatype or shortened(str(inputs[0]["datatype"]), 40)
                shape = [int(size) for size in inputs[0]["shape"]]
                if (shape and shape[0] > _LARGEST_BATCH) or math.prod(shape[1:]) > _LARGEST_INPUT:
                    raise ValueError(f"inputs of shape {shape}")
                self._declare([size if size > 0 else None for size in shape])
            names = [str(each["name"]) for each in outputs]
            if self._output is None and len(names) == 1:
                self._output = names[0]
            shapes = [[int(size) for size in each["shape"][1:]] for each in outputs]
        except InvalidValue:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._error(f"its description of its tensors is not valid: {error!r}") from None
        if self._input is None or self._datatype is None:
            missing = " and ".join(key for key, value in given.items() if value is None)
            raise self._error(f"describes {len(inputs)} inputs, not one: {missing} must be given")
        if self._output is None and names:
            raise InvalidValue("output_name", None, f"{shortened(one_of(names))} of {self.name}")
        if shapes and all(size > 0 for shape in shapes for size in shape):
            self._columns = sum(math.prod(shape) for shape in shapes)

    def _request(self, batch: Array) -> tuple[bytes, dict[str, str]]:
        tensor: dict[str, Any] = {
            "name": self._input, "shape": batch.shape, "datatype": self._datatype,
        }  # fmt: skip
        request: dict[str, Any] = {"inputs": [tensor]}
        if self._output is not None:
            request["outputs"] = [{"name": self._output}]
        if self._binary:
            tensor["parameters"] = {"binary_data_size": batch.nbytes}
            request["parameters"] = {"binary_data_output": True}
            head = json.dumps(request).encode()
            headers = {
                "Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(head)),
            }  # fmt: skip
            return head + batch.tobytes(), headers
        tensor["data"] = batch.ravel().tolist()
        try:
            text = json.dumps(request, allow_nan=False)
        except ValueError:
            raise InvalidValue("inputs", "an array with NaN or inf", "finite") from None
        return text.encode(), {"Content-Type": "application/json"}

    def _tensor(self, reply: Reply) -> Array:
        """Return the scores in an answer, in the shape that it says they have."""
        try:
            end = int(reply.headers.get(_HEADER_LENGTH, len(reply.body)))
            answer = self._json(reply._replace(body=reply.body[:end]))
            names = [output["name"] for output in answer["outputs"]]
            wanted = self._output or (names[0] if len(names) == 1 else None)
            for output in answer["outputs"]:
                size = (output.get("parameters") or {}).get("binary_data_size")
                begin, end = end, end + _size(size or 0)
                if output["name"] == wanted:
                    data = output["data"] if size is None else reply.body[begin:end]
                    return self._numbers(data, output["datatype"]).reshape(output["shape"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._error(f"the answer does not follow the protocol: {error!r}") from None
        expected = "one output" if self._output is None else f"the output {self._output!r}"
        raise self._error(f"answered the outputs {names}, not {expected}")

    def _numbers(self, data: Any, datatype: Any) -> Array:
        types = _TYPES | _WHOLE if self.outputs == "labels" else _TYPES
        if datatype not in types:
            raise self._error(f"answered {datatype!r}, not {one_of(types)}")
        if isinstance(data, bytes):
            return np.frombuffer(data, types[datatype])
        numbers = np.asarray(data)
        if numbers.dtype.kind not in "fiu":
            raise self._error("answered data that are not all numbers")
        return numbers.astype(types[datatype])

    def _json(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object in an answer, or raise what it says instead."""
        if encoding := reply.headers.get("Content-Encoding"):
            raise self._error(f"answered with the encoding {encoding!r}, which was not asked for")
        try:
            answer = read_json(reply.body)
        except ValueError:
            shown = shortened(reply.body[:400].decode(errors="replace"), 80)
            raise self._error(f"the answer is not JSON: {shown!r}") from None
        if not isinstance(answer, dict):
            raise self._error(f"answered a JSON {type(answer).__name__}, not an object")
        if "error" in answer:
            raise self._error(shortened(str(answer["error"])))
        return answer

    def _error(self, problem: str) -> ModelError:
        return self._service.error(self._path, problem)


def _size(size: Any) -> int:
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"a size of {size!r}")
    return size
