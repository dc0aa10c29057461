"""The model in use: what it takes and gives, how long it takes, and its replacement while requests go on."""

import contextlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from l2h import protocol
from l2h.bundle import BundleError, ServerBundle
from l2h.columns import Columns
from l2h.errors import DataError, L2HError
from l2h.fleet import made_at, told_name
from l2h.serving.errors import ServingError, malformed
from l2h.serving.model.function import DESCRIPTION, FunctionModel
from l2h.serving.process.logs import log_event
from l2h.serving.process.metrics import Metrics

INPUT, OUTPUT, LABEL = "x", "scores", "label"
_JSON = (b"content-type", protocol.JSON.encode())
_BINARY = (b"content-type", protocol.BINARY.encode())
_LENGTH = protocol.LENGTH_HEADER.lower().encode()
#: Weight of the latest call in the running mean of seconds; how often a call is timed at the start, and from how many
#: seconds on only once.
_NEW, _REPEATS, _SLOW = 0.1, 3, 0.2
#: How many rows of a table are made to find one that the model answers.
_ROWS = 64


class ServedModel:
    """A bundle, ready to answer; at most ``most`` inputs in one call, and in one request."""

    def __init__(self, bundle: ServerBundle | FunctionModel, most: int) -> None:
        self.name, self.version = bundle.name, bundle.version
        #: The name of the bundle that it is of, and when that was made, in seconds since 1970; of a function unknown.
        self.origin = ("", 0)
        if isinstance(bundle, ServerBundle):
            self.origin = told_name(bundle.manifest.name), made_at(bundle.manifest.created)
        self.shape, self.dtype = tuple(bundle.input_shape), np.dtype(bundle.input_dtype)
        self.classes, self.most = [str(name) for name in bundle.classes], most
        self.datatype = protocol.datatype(self.dtype)
        self.columns = [] if bundle.columns is None else bundle.columns.features
        self.labels = bundle.labels
        #: What it gives: labels where they tell more than the place of the largest score.
        self.outputs = [OUTPUT] if self.labels.values is None else [OUTPUT, LABEL]
        self.run = bundle.run
        python = isinstance(bundle, FunctionModel)
        self._platform, self._backend = ("python", "python") if python else ("onnxruntime_onnx", "onnxruntime")
        self.elements = int(np.prod(self.shape))
        enough = protocol.MessageLimits().json_bytes
        self.limits = protocol.MessageLimits(
            elements=most * self.elements, json_bytes=max(enough, 32 * most * self.elements)
        )
        names = json.dumps({"model_name": self.name, "model_version": self.version})[:-1].replace("%", "%%").encode()
        self._head = names + b'%b, "outputs": [{"name": "scores", "shape": [%d, %d], "datatype": "FP32", '
        self._decoded = bundle.decoded
        # A function may ask somebody who is paid: it is tried with one input.
        example = np.zeros((1, *self.shape), self.dtype)
        if self._decoded is not None:
            example = self._decoded.made_rows(1).x if python else self._made_row(self._decoded)
        self.timing = measure_timing(lambda n: self.run(example.repeat(n, axis=0)), most, once=python)

    def _made_row(self, columns: Columns) -> npt.NDArray[np.float32]:
        """Return a row that the model answers: some refuse a category that was declared and not in the training."""
        rows = columns.made_rows(_ROWS).x
        for i in range(_ROWS):
            with contextlib.suppress(BundleError):
                self.run(rows[i : i + 1])
                return rows[i : i + 1]
        return rows[:1]

    @property
    def label_type(self) -> str:
        """The protocol's datatype of the labels."""
        return protocol.datatype(self.labels.decode(np.zeros(1, dtype=np.int64)).dtype)

    def accept(self, request: protocol.Request) -> npt.NDArray[Any]:
        """Return the inputs of a request; a RefusalError where they do not fit the model."""
        tensor = request.inputs[0]
        if len(request.inputs) > 1 or tensor.name != INPUT:
            names = ", ".join(repr(given.name[:40]) for given in request.inputs)
            raise malformed(f"the model takes one input, '{INPUT}'; got {names}")
        if any(name not in self.outputs for name in request.wanted):
            given = "one output, 'scores'" if len(self.outputs) == 1 else "the outputs 'scores' and 'label'"
            raise malformed(f"the model gives {given}; asked for {', '.join(request.wanted)[:80]}")
        x = tensor.data
        if x.dtype != self.dtype:
            raise malformed(f"'{INPUT}' is {self.datatype}; got {protocol.datatype(x.dtype)}")
        if x.shape[1:] != self.shape or x.ndim == 0:
            raise malformed(f"'{INPUT}' has the shape {[-1, *self.shape]}; got {list(x.shape)}")
        if not 1 <= len(x) <= self.most:
            raise malformed(f"a request has 1 to {self.most} inputs; got {len(x)}: send them in several")
        if self.dtype.kind == "f" and not np.isfinite(x).all():
            raise malformed(f"'{INPUT}' holds a value that is not finite")
        if self._decoded is not None:
            try:
                self._decoded.decode(x)
            except DataError as error:
                raise malformed(f"'{INPUT}', {error}") from error
        return x if x.flags.aligned else x.copy()  # the values begin where the JSON part ends: anywhere

    def encode(
        self, scores: npt.NDArray[np.float32], request: protocol.Request
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return body and headers of the answer: :func:`l2h.protocol.encode_response` for this output, but faster."""
        if LABEL in request.wanted:
            return self._encode_labels(scores, request)
        id_ = b"" if request.id is None else b', "id": ' + json.dumps(request.id).encode()
        head = self._head % (id_, *scores.shape)
        if request.wants_binary(OUTPUT):
            head += b'"parameters": {"binary_data_size": %d}}]}' % scores.nbytes
            return head + scores.tobytes(), [_BINARY, (_LENGTH, b"%d" % len(head))]
        # Of a float32 it writes as few digits as identify it, half of those of a float64.
        data = orjson.dumps(scores.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
        return b'%b"data": %b}]}' % (head, data), [_JSON]

    def _encode_labels(
        self, scores: npt.NDArray[np.float32], request: protocol.Request
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        known = {OUTPUT: scores, LABEL: self.labels.decode(scores.argmax(axis=1))}
        tensors = [protocol.Tensor(name, known[name]) for name in dict.fromkeys(request.wanted)]
        binary = {name: request.wants_binary(name) for name in known}
        response = protocol.Response(tensors, self.name, self.version, request.id)
        body, headers = protocol.encode_response(response, binary)
        return body, [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    def metadata(self) -> dict[str, Any]:
        """Return what ``/v2/models/NAME`` answers."""
        labels: list[dict[str, Any]] = []
        values: dict[str, Any] = {}
        if self.labels.values is not None:
            labels = [{"name": LABEL, "datatype": self.label_type, "shape": [-1]}]
            values = {"labels": list(self.labels.values)}
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": self._platform,
            "inputs": [{"name": INPUT, "datatype": self.datatype, "shape": [-1, *self.shape]}],
            "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, len(self.classes)]}, *labels],
            "parameters": {"classes": self.classes} | ({"columns": self.columns} if self.columns else {}) | values,
        }

    def config(self, delay: float) -> dict[str, Any]:
        """Return what ``/v2/models/NAME/config`` answers, in Triton's words."""
        kind = self.label_type.replace(protocol.TEXTS, "STRING")
        labels = [{"name": name, "data_type": f"TYPE_{kind}", "dims": [1]} for name in self.outputs[1:]]
        return {
            "name": self.name,
            "platform": self._platform,
            "backend": self._backend,
            "max_batch_size": self.most,
            "input": [{"name": INPUT, "data_type": f"TYPE_{self.datatype}", "dims": list(self.shape)}],
            "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [len(self.classes)]}, *labels],
            "dynamic_batching": {"max_queue_delay_microseconds": round(delay * 1e6)},
        }


class Timing:
    """Seconds of a call with n inputs: a line ``fixed + each * n``, scaled by what recent calls took.

    At first the line goes through ``one``, the seconds of a call with one input, and ``many``, those of ``most``.

    Example:
        >>> timing = Timing(0.002, 0.066, most=65)
        >>> round(timing.call(33), 3)
        0.034
        >>> round(timing.wait(130), 3)
        0.132
    """

    def __init__(self, one: float, many: float, most: int) -> None:
        self._most = most
        self._each = max(0.0, (many - one) / max(1, most - 1))
        self._fixed = max(1e-6, one - self._each)
        self._scale = 1.0

    def call(self, inputs: int) -> float:
        """Return the expected seconds of one call."""
        return (self._fixed + self._each * inputs) * self._scale

    def observe(self, inputs: int, seconds: float) -> None:
        """Learn from the seconds that a call took."""
        expected = self._fixed + self._each * inputs
        self._scale += _NEW * (min(max(seconds / expected, 0.1), 100.0) - self._scale)

    def wait(self, inputs: int) -> float:
        """Return the expected seconds until so many inputs are done."""
        calls, rest = divmod(inputs, self._most)
        return calls * self.call(self._most) + (self.call(rest) if rest else 0.0)


def measure_timing(run: Callable[[int], object], most: int, *, once: bool = False) -> Timing:
    """Time calls with one input and with ``most``, the best of a few; a slow one is not repeated.

    With ``once`` there is a single call, with one input.
    """
    seconds: dict[int, float] = {}
    for inputs in (1,) if once else (1, most):
        for _ in range(1 if once else _REPEATS):
            start = time.perf_counter()
            run(inputs)
            seconds[inputs] = min(seconds.get(inputs, math.inf), time.perf_counter() - start)
            if seconds[inputs] > _SLOW:
                break
    return Timing(seconds[1], seconds.get(most, seconds[1]), most)


def load_model(folder: Path, server: str | None, threads: int, most: int) -> ServedModel:
    """Load a server of a bundle, or the copy of a function, and run it a few times; raise an L2HError if it fails."""
    described = (folder / DESCRIPTION).exists()
    bundle = FunctionModel(folder) if described else ServerBundle(folder, server=server, threads=threads)
    try:
        return ServedModel(bundle, most)
    except L2HError:
        raise
    except Exception as error:  # what onnxruntime and functions raise has no common class
        what, hint = f"the model of {folder}", ""
        if isinstance(bundle, FunctionModel):
            what, texts = bundle.manifest.function, bundle.manifest.texts
            hint = f"; it does not get column {texts[0]!r}, whose texts do not go over the wire" if texts else ""
        raise ServingError(f"{what} cannot be run: {type(error).__name__}: {error}{hint}") from error


class CurrentModel:
    """Holds the model in use. A request keeps the model it was read for, so that a replacement drops none."""

    def __init__(self, model: ServedModel, metrics: Metrics) -> None:
        self._metrics = metrics
        self._use(model)

    def replace(self, model: ServedModel) -> None:
        """Answer with another model from the next request on."""
        before = self.model
        self._metrics.reloads.labels("taken").inc()
        self._use(model)
        log_event("info", "bundle_taken", version=model.version, before=before.version)

    def _use(self, model: ServedModel) -> None:
        self.model = model
        path = f"/v2/models/{model.name}"
        self.infer_paths = {f"{path}/infer", f"{path}/versions/{model.version}/infer"}
        self._metrics.show_model(model.name, model.version)
