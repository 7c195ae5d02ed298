"""A model in an ONNX file, on the CPU."""

import os
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.machine import cores
from fedzo.core.types import Array
from fedzo.errors import MissingExtra, UsageError, check_count, first_line, one_of, require
from fedzo.models.base import NETWORK_NUMBERS, Common, Model

_TYPES: dict[str, type[np.floating[Any]]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
}
_QUICKEST = 128  # inputs per thread: larger batches no longer fit into its cache


class OnnxModel(Model):
    """A model in an ONNX file, run by ONNX Runtime.

    Inputs are cast to the type that the file declares; inputs of this type are not copied. ONNX
    Runtime releases the GIL, and several threads may run the model at the same time.

    Parameters
    ----------
    path
        The file. The first axis of its single input is the batch. If the file fixes the batch
        size, the last part of a batch is padded; padding does not count as queries.
    outputs
        The kind of scores: "logits", "probabilities", "log-probabilities" or "labels".
    threads
        How many parts of a batch are computed at the same time, each by one thread. None: one
        per core, which is quicker than sharing each layer among the cores.
    output_name
        The output with the scores, for files with several outputs.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`. The shape is needed only if the file leaves it open.
        ``max_batch`` is 128 by default, about the quickest size on a core.

    Examples
    --------
    >>> import onnx, tempfile
    >>> negative = '<ir_version: 8, opset_import: ["": 17]>'
    >>> negative += "negative (float[n, 2] x) => (float[n, 2] y) {y = Neg(x)}"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(onnx.parser.parse_model(negative), f"{folder}/negative.onnx")
    ...     model = OnnxModel(f"{folder}/negative.onnx")
    >>> model.input_shape, model.classes
    ((2,), 2)
    >>> model([[0.25, 0.5]])
    array([[-0.25, -0.5 ]], dtype=float32)
    """

    _most_numbers = NETWORK_NUMBERS

    def __init__(
        self,
        path: str | os.PathLike[str],
        outputs: str = "logits",
        *,
        threads: int | None = None,
        output_name: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        if threads is not None:
            check_count("threads", threads)
        super().__init__(Path(path).name, outputs, **common)
        self.max_batch = self.max_batch or _QUICKEST
        self.in_flight = threads or cores()
        self._session = self._opened(Path(path).expanduser())
        self._input, self._dtype = self._only_input()
        shape = [size if isinstance(size, int) and size > 0 else None for size in self._input.shape]
        self._declare(shape)
        self._output = self._chosen_output(output_name)
        columns = self._output.shape[-1] if self._output.shape else None
        if outputs != "labels":
            self.classes = columns if isinstance(columns, int) else None

    def _scores(self, batch: Array) -> ArrayLike:
        batch = np.ascontiguousarray(batch, self._dtype)
        try:
            (scores,) = self._session.run([self._output.name], {self._input.name: batch})
        except Exception as error:  # the exceptions of ONNX Runtime have no common base
            raise self._error(first_line(error), "run-failed") from None
        return scores  # type: ignore[no-any-return]

    def _opened(self, path: Path) -> Any:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra("ONNX models need onnxruntime", "attack") from None
        if not path.is_file():
            raise UsageError(f"{path}: does not exist", code="no-file")
        options = onnxruntime.SessionOptions()
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
        options.log_severity_level = 4  # failures are raised, not printed
        try:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the exceptions of ONNX Runtime have no common base
            raise self._error(f"cannot be loaded: {first_line(error)}", "not-onnx") from None

    def _only_input(self) -> tuple[Any, type[np.floating[Any]]]:
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(repr(each.name) for each in inputs)
            raise self._error(f"has {len(inputs)} inputs ({names}), not one", "inputs")
        if inputs[0].type not in _TYPES:
            raise self._error(f"takes {inputs[0].type}, not {one_of(_TYPES)}", "dtype")
        return inputs[0], _TYPES[inputs[0].type]

    def _chosen_output(self, name: str | None) -> Any:
        outputs = {each.name: each for each in self._session.get_outputs()}
        if name is None and len(outputs) == 1:
            return next(iter(outputs.values()))
        require(name in outputs, "output_name", name, f"{one_of(outputs)} of {self.name}")
        return outputs[str(name)]
