"""LiteRT (TensorFlow Lite) files, which most phones run: in training, and on a device with the extra ``litert``."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from l2h.classifiers.base import Array, Classifier, fixed_batch, in_batches
from l2h.classifiers.preprocessing import Preprocessing
from l2h.errors import ClientError, missing_extra
from l2h.files import read_whole

#: How the name of such a file ends.
LITERT = ".tflite"
_LARGEST = 2**31


class LiteRTModel:
    """A LiteRT model of a file's bytes, ready to run. Calls from several threads are safe, one at a time.

    ``output`` names the output to read; where None, it is the first of two axes, or else the first.
    """

    def __init__(self, data: bytes, threads: int = 1, output: str | None = None) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ModuleNotFoundError as error:
            raise missing_extra("a .tflite file needs the package 'ai-edge-litert'", "litert") from error
        self._interpreter = Interpreter(model_content=data, num_threads=threads)
        self._interpreter.allocate_tensors()
        inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        if len(inputs) != 1:
            raise ValueError(f"it has {len(inputs)} inputs: only models of one are run")
        names = [entry["name"] for entry in outputs]
        if output is not None and output not in names:
            raise ValueError(f"it has no output {output!r}; known: {', '.join(names)}")
        usual = next((entry for entry in outputs if len(entry["shape"]) == 2), outputs[0])
        self._output = usual if output is None else outputs[names.index(output)]
        (self._input,) = inputs
        self.input, self.output = str(self._input["name"]), str(self._output["name"])
        #: What its input holds.
        self.dtype: Any = np.dtype(self._input["dtype"])
        signature = self._input.get("shape_signature")
        given = self._input["shape"] if signature is None or not len(signature) else signature
        #: The shape of its input; None stands for any number.
        self.shape = tuple(None if side < 0 else int(side) for side in given)
        self._rows = int(self._input["shape"][0])
        self._lock = threading.Lock()

    def run(self, x: Array) -> Array:
        """Return the output for prepared samples: as many at once as they are, or as the file takes."""
        batch = fixed_batch(self.shape)
        return self._run(x) if batch is None else in_batches(lambda rows: [self._run(rows)], x, batch)[0]

    def _run(self, x: Array) -> Array:
        model = self._interpreter
        with self._lock:
            if len(x) != self._rows:
                model.resize_tensor_input(self._input["index"], [len(x), *x.shape[1:]])
                model.allocate_tensors()
                self._rows = len(x)
            model.set_tensor(self._input["index"], self._as_input(x))
            model.invoke()
            out: Array = model.get_tensor(self._output["index"])
        scale, zero = self._output["quantization"]
        return (out.astype(np.float32) - np.float32(zero)) * np.float32(scale) if scale else out

    def _as_input(self, x: Array) -> Array:
        scale, zero = self._input["quantization"]
        if not scale or x.dtype == self.dtype:  # pixels go into a quantised input as they are
            return np.ascontiguousarray(x, dtype=self.dtype)
        limits = np.iinfo(self.dtype)
        return np.asarray(np.clip(np.rint(x / scale + zero), limits.min, limits.max), dtype=self.dtype)


class LiteRTClassifier(Classifier):
    """A LiteRT file: float, or quantised to int8 or uint8. A uint8 input gets uint8 images unchanged.

    ``scores`` names the output that holds scores; where None, it is the first of two axes, or else the first.
    """

    kind = "LiteRT model"

    def __init__(self, path: str | Path, scores: str | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.is_file():
            raise ClientError(f"no LiteRT file at {path}")
        try:
            self._bytes = read_whole(self.path, _LARGEST)
            self.model = LiteRTModel(self._bytes, output=scores)
        except (OSError, ValueError, RuntimeError) as error:
            raise ClientError(f"cannot load {path}: {error}") from error
        self.flat = len(self.model.shape) == 2
        self.tries_scales = self.model.dtype != np.uint8
        self.usual_scale = "-1..1" if self.tries_scales and not self.flat else None

    def feed(self, shape: Sequence[int]) -> Preprocessing:
        wanted = replace(self.preprocessing, flat=True) if self.flat else self.preprocessing
        return wanted.completed(shape, self.model.shape[1:], self.usual_scale, channels_last=True)

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        try:
            return self.model.run(X), None
        except (ValueError, RuntimeError) as error:
            raise ClientError(f"{self.path.name} failed on inputs of shape {X.shape}: {error}") from error

    def weights(self) -> list[bytes]:
        return [self._bytes]
