"""The model as the protocol describes it: what it takes, what it gives, and the bytes of an answer."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from l2h import protocol
from l2h.bundle import ServerBundle
from l2h.serving.errors import malformed
from l2h.serving.model.timing import measure_timing

INPUT, OUTPUT = "x", "scores"
PLATFORM = "onnxruntime_onnx"
_JSON = (b"content-type", protocol.JSON.encode())
_BINARY = (b"content-type", protocol.BINARY.encode())
_LENGTH = protocol.LENGTH_HEADER.lower().encode()


class ServedModel:
    """A bundle, ready to answer.

    Args:
        bundle: the server's half.
        most: inputs of one call, and of one request.
    """

    def __init__(self, bundle: ServerBundle, most: int) -> None:
        self.name, self.version = bundle.name, bundle.version
        self.shape, self.dtype = tuple(bundle.input_shape), np.dtype(bundle.input_dtype)
        self.classes, self.most = [str(name) for name in bundle.classes], most
        self.datatype = protocol.datatype(self.dtype)
        self.interface = self.shape, self.dtype, tuple(self.classes)
        self.run = bundle.run
        self.elements = int(np.prod(self.shape))
        enough = protocol.MessageLimits().json_bytes
        self.limits = protocol.MessageLimits(
            elements=most * self.elements, json_bytes=max(enough, 32 * most * self.elements)
        )
        names = json.dumps({"model_name": self.name, "model_version": self.version})[:-1].replace("%", "%%").encode()
        self._head = names + b'%b, "outputs": [{"name": "scores", "shape": [%d, %d], "datatype": "FP32", '
        self.timing = measure_timing(lambda n: self.run(np.zeros((n, *self.shape), self.dtype)), most)

    def accept(self, request: protocol.Request) -> npt.NDArray[Any]:
        """Return the inputs of a request.

        Raises:
            RefusalError: 400, the request does not fit the model.
        """
        tensor = request.inputs[0]
        if len(request.inputs) > 1 or tensor.name != INPUT:
            names = ", ".join(repr(given.name[:40]) for given in request.inputs)
            raise malformed(f"the model takes one input, '{INPUT}'; got {names}")
        if request.wanted and any(name != OUTPUT for name in request.wanted):
            raise malformed(f"the model gives one output, '{OUTPUT}'; asked for {', '.join(request.wanted)[:80]}")
        x = tensor.data
        if x.dtype != self.dtype:
            raise malformed(f"'{INPUT}' is {self.datatype}; got {protocol.datatype(x.dtype)}")
        if x.shape[1:] != self.shape or x.ndim == 0:
            raise malformed(f"'{INPUT}' has the shape {[-1, *self.shape]}; got {list(x.shape)}")
        if not 1 <= len(x) <= self.most:
            raise malformed(f"a request has 1 to {self.most} inputs; got {len(x)}: send them in several")
        if self.dtype.kind == "f" and not np.isfinite(x).all():
            raise malformed(f"'{INPUT}' holds a value that is not finite")
        return x if x.flags.aligned else x.copy()  # the values begin where the JSON part ends: anywhere

    def encode(
        self, scores: npt.NDArray[np.float32], request: protocol.Request
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return body and headers of the answer: :func:`l2h.protocol.encode_response` for this output, but faster."""
        id_ = b"" if request.id is None else b', "id": ' + json.dumps(request.id).encode()
        head = self._head % (id_, *scores.shape)
        if request.wants_binary(OUTPUT):
            head += b'"parameters": {"binary_data_size": %d}}]}' % scores.nbytes
            return head + scores.tobytes(), [_BINARY, (_LENGTH, b"%d" % len(head))]
        # Of a float32 it writes as few digits as identify it, half of those of a float64.
        data = orjson.dumps(scores.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
        return b'%b"data": %b}]}' % (head, data), [_JSON]

    def metadata(self) -> dict[str, Any]:
        """Return what ``/v2/models/NAME`` answers."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": PLATFORM,
            "inputs": [{"name": INPUT, "datatype": self.datatype, "shape": [-1, *self.shape]}],
            "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, len(self.classes)]}],
            "parameters": {"classes": self.classes},
        }

    def config(self, delay: float) -> dict[str, Any]:
        """Return what ``/v2/models/NAME/config`` answers, in Triton's words."""
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": "onnxruntime",
            "max_batch_size": self.most,
            "input": [{"name": INPUT, "data_type": f"TYPE_{self.datatype}", "dims": list(self.shape)}],
            "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [len(self.classes)]}],
            "dynamic_batching": {"max_queue_delay_microseconds": round(delay * 1e6)},
        }
