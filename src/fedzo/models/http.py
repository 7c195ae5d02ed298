"""A model behind HTTP: the Open Inference Protocol, version 2, or any service that speaks JSON."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.types import Array
from fedzo.errors import InvalidValue, ModelError, check_count, one_line, one_of, require
from fedzo.models.base import Common, Model
from fedzo.models.service import Reply, Request, Service, read_json

_TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_WHOLE = {"INT64": "<i8", "INT32": "<i4", "INT16": "<i2", "UINT8": "u1"}  # labels may be these
_HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "binary_tensor_data"  # the name of the extension in a service's description
_DESCRIPTION_BYTES = 1 << 20  # the longest description of a service or a model
_SCORE_BYTES = 48  # the longest score as text, with comma and indentation
_MANY_CLASSES = 1 << 15  # assumed while the number of classes is unknown
_UNKNOWN_BYTES = 1 << 26  # the longest answer while the number of classes is unknown
_LARGEST_BATCH = 1 << 16  # the largest fixed batch size of a service: smaller batches are padded
_LARGEST_INPUT = 1 << 31  # numbers
_JSON = {"Content-Type": "application/json"}
_BATCH, _INPUT = "$inputs", "$input"  # in a template: a batch, and a single input
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class HttpModel(Model):
    """A served model, as by Triton, KServe or MLServer, or behind any service that speaks JSON.

    With ``request`` or ``parse``, ``url`` is the address of the endpoint itself. Else names, shape
    and type that are not given are requested from the service once, by the constructor. Any number
    of threads may query the model, each over its own connection.

    ``queries`` and the budget count each input once, however many attempts its answer takes. A
    failed attempt may have been processed nevertheless, and ``sent`` counts the inputs of every
    attempt. A service that charges per input charges between ``queries`` and ``sent``; with
    ``retries=0`` they are equal.

    Parameters
    ----------
    url
        The address of the service: the part before "/v2".
    model
        The name of the model in the service, for the Open Inference Protocol.
    request
        The JSON to send, for other services. The text ``"$inputs"`` in it stands for a batch as
        nested lists, and ``"$input"`` for a single input: then each request has one. Or a function
        of a batch, (n, ...), that returns the JSON value. By default ``{"inputs": "$inputs"}``.
    parse
        Where the scores are in the answer: keys and numbers joined by dots, such as
        ``"outputs.0.scores"``. Or a function of the answer that returns the scores, (n, classes).
        By default the answer itself.
    version
        The version of the model. None: the service chooses.
    outputs
        The kind of scores: "logits", "probabilities", "log-probabilities" or "labels".
    input_name, datatype
        Name and type of the input. Types are "FP16", "FP32" and "FP64". None: requested from the
        service.
    output_name
        The output with the scores. None: the only one.
    binary
        Whether numbers are sent as bytes instead of text: the binary tensor extension of the
        protocol, several times faster for images. FP16 requires it. None: if the service
        announces it; as text if nothing has to be requested.
    in_flight
        The number of requests at the same time: while the service processes one, the next is
        sent. A batch is split into that many parts, or into parts of ``max_batch`` inputs.
    headers, timeout, retries, backoff, verify
        See :class:`~fedzo.models.service.Service`. The values of headers are never shown.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`. The shape is requested from the service if it is not given.

    Examples
    --------
    With everything given, nothing is requested before the first query:

    >>> HttpModel(
    ...     "http://127.0.0.1:8000", "resnet", headers={"Authorization": "Bearer secret"},
    ...     input_name="images", input_shape=(3, 32, 32), datatype="FP32", output_name="logits",
    ... )
    HttpModel('http://127.0.0.1:8000/v2/models/resnet', outputs='logits')
    >>> HttpModel("http://127.0.0.1:8000/classify", request={"image": "$input"}, parse="scores")
    HttpModel('http://127.0.0.1:8000/classify', outputs='logits')
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        outputs: str = "logits",
        *,
        request: Any = None,
        parse: str | Callable[[Any], Any] | None = None,
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
        self._json_only = request is not None or parse is not None
        named = isinstance(model, str) and bool(model)
        allowed = "the model's name, or omitted if request or parse is given"
        require(named != self._json_only, "model", model, allowed)
        self._service = Service(
            url, headers=headers, timeout=timeout, retries=retries, backoff=backoff, verify=verify
        )
        self._path = "" if model is None else f"/v2/models/{quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{quote(str(version), safe='')}"
        super().__init__(self._service.url + self._path, outputs, **common)
        check_count("in_flight", in_flight)
        self.in_flight = in_flight
        self._input, self._output, self._datatype = input_name, output_name, datatype
        self._columns: int | None = None  # of all outputs, if the service describes them
        if self._json_only:
            self._template = {"inputs": _BATCH} if request is None else request
            self._parse = parse if callable(parse) else _path_reader(parse)
            text = "" if callable(request) else json.dumps(self._template, default=repr)
            self._single = json.dumps(_INPUT) in text
            holds = callable(request) or self._single or json.dumps(_BATCH) in text
            allowed = f"a function of a batch, or JSON that contains {_BATCH!r} or {_INPUT!r}"
            require(holds, "request", request, allowed)
            self.max_batch = 1 if self._single else self.max_batch
            return
        if None in (input_name, output_name, datatype, self.input_shape):
            self._describe()
            binary = self._takes_binary() if binary is None else binary
        self._binary = bool(binary)
        types = [name for name in _TYPES if binary or name != "FP16"]
        wanted = one_of(types) + ("" if binary else ", or 'FP16' with binary = true")
        require(self._datatype in types, "datatype", self._datatype, wanted)

    @property
    def sent(self) -> int:
        """The number of inputs sent to the service, counting each attempt."""
        return self._service.sent

    def _scores(self, batch: Array) -> ArrayLike:
        if self._json_only:
            return self._json_scores(batch)
        batch = np.ascontiguousarray(batch, _TYPES[str(self._datatype)])
        body, headers = self._request(batch)
        rows, path = len(batch), f"{self._path}/infer"
        request = Request(path, self._most_bytes(rows), body, headers, cost=rows)
        return self._tensor(self._service.request(request))

    def _json_scores(self, batch: Array) -> Array:
        """Return the scores that a service without a protocol answers."""
        template: Any = self._template
        content = template(batch) if callable(template) else _filled(template, batch)
        most, body = self._most_bytes(len(batch)), _encoded(content)
        reply = self._service.request(Request(self._path, most, body, _JSON, cost=len(batch)))
        try:
            scores = np.asarray(self._parse(read_json(reply.body)))
        except (*_MALFORMED, IndexError) as error:
            shown = reply.body[:80].decode(errors="replace")
            problem = f"parse does not fit the answer {shown!r}: {error!r}"
            raise self._error(problem, "protocol") from None
        if self._single and (not scores.ndim or len(scores) != 1):  # no batch around the scores
            scores = scores[None]
        if scores.dtype.kind in "iu" and self.outputs != "labels":
            scores = scores.astype(np.float64)  # a score of 1 is often written without its point
        return scores

    def _most_bytes(self, rows: int) -> int:
        """Return the longest acceptable answer about this many inputs."""
        columns = max(self.classes or 0, self._columns or 0) or _MANY_CLASSES
        size = rows * columns * _SCORE_BYTES
        return _DESCRIPTION_BYTES + (size if self.classes else min(size, _UNKNOWN_BYTES))

    def _takes_binary(self) -> bool:
        """Return whether the service announces the binary extension."""
        try:
            reply = self._service.request(Request("/v2", _DESCRIPTION_BYTES))
            return _BINARY in self._json(reply)["extensions"]
        except (ModelError, KeyError, TypeError):  # no such announcement
            return False

    def _describe(self) -> None:
        """Request the description of the model, and adopt everything that was not given."""
        reply = self._service.request(Request(self._path, _DESCRIPTION_BYTES))
        described = self._json(reply)
        try:
            inputs = {str(each["name"]): each for each in described.get("inputs") or []}
            outputs = {str(each["name"]): each["shape"] for each in described.get("outputs") or []}
            shapes = [[int(size) for size in shape[1:]] for shape in outputs.values()]
            if self._input is not None and inputs:
                known = one_line(one_of(inputs), 200)
                require(self._input in inputs, "input_name", self._input, known)
            name = self._input or (next(iter(inputs)) if len(inputs) == 1 else None)
            if name in inputs:
                self._adopt_input(str(name), inputs[str(name)])
        except InvalidValue:
            raise
        except _MALFORMED as error:
            raise self._error(f"its description is not valid: {error!r}", "description") from None
        if self._input is None or self._datatype is None:
            problem = f"describes {len(inputs)} inputs, not one: give input_name and datatype"
            raise self._error(problem, "inputs")
        if self._output is None and outputs:
            allowed = f"{one_line(one_of(outputs), 200)} of {self.name}"
            require(len(outputs) == 1, "output_name", None, allowed)
            self._output = next(iter(outputs))
        if shapes and all(size > 0 for shape in shapes for size in shape):
            self._columns = sum(math.prod(shape) for shape in shapes)

    def _adopt_input(self, name: str, described: Mapping[str, Any]) -> None:
        self._input = name
        self._datatype = self._datatype or one_line(str(described["datatype"]), 40)
        shape = [int(size) for size in described["shape"]]
        if (shape and shape[0] > _LARGEST_BATCH) or math.prod(shape[1:]) > _LARGEST_INPUT:
            raise ValueError(f"inputs of shape {shape}")
        self._declare([size if size > 0 else None for size in shape])

    def _request(self, batch: Array) -> tuple[bytes, dict[str, str]]:
        tensor: dict[str, Any] = {"name": self._input, "datatype": self._datatype}
        tensor["shape"] = batch.shape
        request: dict[str, Any] = {"inputs": [tensor]}
        if self._output is not None:
            request["outputs"] = [{"name": self._output}]
        if self._binary:
            tensor["parameters"] = {"binary_data_size": batch.nbytes}
            request["parameters"] = {"binary_data_output": True}
            head = json.dumps(request).encode()
            headers = {"Content-Type": "application/octet-stream"}
            return head + batch.tobytes(), headers | {_HEADER_LENGTH: str(len(head))}
        tensor["data"] = batch.ravel().tolist()
        return _encoded(request), _JSON

    def _tensor(self, reply: Reply) -> Array:
        """Return the scores in an answer, in the shape that the answer states."""
        try:
            end = int(reply.headers.get(_HEADER_LENGTH, len(reply.body)))
            outputs = self._json(reply._replace(body=reply.body[:end]))["outputs"]
            names = [output["name"] for output in outputs]
            wanted = self._output or (names[0] if len(names) == 1 else None)
            for output in outputs:
                size = (output.get("parameters") or {}).get("binary_data_size")
                if size is not None and (not isinstance(size, int) or size < 0):
                    raise ValueError(f"a size of {size!r}")
                begin, end = end, end + (size or 0)
                if output["name"] == wanted:
                    data = output["data"] if size is None else reply.body[begin:end]
                    return self._numbers(data, output["datatype"]).reshape(output["shape"])
        except _MALFORMED as error:
            raise self._error(f"does not follow the protocol: {error!r}", "protocol") from None
        expected = "one output" if self._output is None else f"the output {self._output!r}"
        raise self._error(f"answered the outputs {names}, not {expected}", "outputs")

    def _numbers(self, data: Any, datatype: Any) -> Array:
        types = _TYPES | _WHOLE if self.outputs == "labels" else _TYPES
        if datatype not in types:
            raise self._error(f"answered {datatype!r}, not {one_of(types)}", "dtype")
        if isinstance(data, bytes):
            return np.frombuffer(data, types[datatype])
        numbers = np.asarray(data)
        if numbers.dtype.kind not in "fiu":
            raise self._error("answered data that are not all numbers", "dtype")
        return numbers.astype(types[datatype])

    def _json(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object in an answer, or raise its error message."""
        if encoding := reply.headers.get("Content-Encoding"):
            raise self._error(f"answered with an unrequested encoding, {encoding!r}", "encoding")
        try:
            answer = read_json(reply.body)
        except ValueError:
            shown = reply.body[:80].decode(errors="replace")
            raise self._error(f"the answer is not JSON: {shown!r}", "not-json") from None
        if not isinstance(answer, dict):
            raise self._error(f"answered a JSON {type(answer).__name__}, not an object", "not-json")
        if "error" in answer:
            raise self._error(str(answer["error"]), "model-error")
        return answer

    def _error(self, problem: str, code: str | None = None) -> ModelError:
        return self._service.error(self._path, problem, code)


def _filled(template: Any, batch: Array) -> Any:
    """Return a template with the inputs in place of its words.

    >>> _filled({"instances": "$inputs", "top": 3}, np.zeros((1, 2)))
    {'instances': [[0.0, 0.0]], 'top': 3}
    """
    if isinstance(template, Mapping):
        return {key: _filled(each, batch) for key, each in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(each, batch) for each in template]
    if isinstance(template, str) and template in (_BATCH, _INPUT):
        return (batch if template == _BATCH else batch[0]).tolist()
    return template


def _path_reader(path: str | None) -> Callable[[Any], Any]:
    """Return a function that follows a path of keys and numbers.

    >>> _path_reader("outputs.0.scores")({"outputs": [{"scores": [1.0, 2.0]}]})
    [1.0, 2.0]
    """
    require(
        path is None or isinstance(path, str), "parse", path, "keys joined by dots, or a function"
    )
    steps: Sequence[str] = path.split(".") if path else ()

    def read(answer: Any) -> Any:
        for step in steps:
            answer = answer[int(step) if isinstance(answer, list) else step]
        return answer

    return read


def _encoded(content: Any) -> bytes:
    """Return a JSON text; NumPy's arrays and numbers are as JSON has them."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        raise TypeError(f"request returned a {type(value).__name__}, which JSON cannot carry")

    try:
        return json.dumps(content, allow_nan=False, default=plain).encode()
    except ValueError:
        raise InvalidValue("inputs", "an array with NaN or inf", "finite") from None
