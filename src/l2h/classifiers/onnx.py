"""Classifiers in ONNX files."""

from pathlib import Path

from l2h.classifiers.base import Classifier
from l2h.classifiers.reading import Array, prepare_inputs, to_array
from l2h.errors import ClientError


class OnnxClassifier(Classifier):
    """An ONNX file, run by onnxruntime.

    Args:
        path: the file. Its first input gets the batch: as it is where it takes uint8, else as float32 with uint8
            scaled to [-1, 1].
        scores: name of the output that holds scores; where None, the first floating output of two axes, or else the
            first output.
        features: name of the output that holds features.
        flat: feed one flat row per sample, unscaled, as models exported from scikit-learn want it; where None,
            decided by the file's own input shape.
    """

    kind = "ONNX model"

    def __init__(
        self, path: str | Path, scores: str | None = None, features: str | None = None, flat: bool | None = None
    ) -> None:
        super().__init__()
        import onnxruntime as ort

        self.path = Path(path)
        if not self.path.is_file():
            raise ClientError(f"no ONNX file at {path}")
        self._bytes = self.path.read_bytes()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(self._bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
            raise ClientError(f"cannot load {path}: {error}") from error
        self.input = self.session.get_inputs()[0]
        outputs = {o.name: o for o in self.session.get_outputs()}
        for name in (scores, features):
            if name is not None and name not in outputs:
                raise ClientError(f"{path} has no output {name!r}; known: {', '.join(outputs)}")
        floats = [o.name for o in outputs.values() if o.type == "tensor(float)" and len(o.shape) == 2]
        # skl2onnx gives one dictionary per sample unless it is told not to.
        maps = [o.name for o in outputs.values() if o.type.startswith("seq(map(int64")]
        self.scores = scores or (floats or maps or list(outputs))[0]
        self.features = features
        self.flat = len(self.input.shape) == 2 if flat is None else flat
        #: How the input is fed, see :func:`l2h.classifiers.reading.prepare_inputs`.
        self.feed = "flat" if self.flat else "as_is" if self.input.type == "tensor(uint8)" else "unit_range"

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        x = prepare_inputs(X, self.feed)
        names = [self.scores] + ([self.features] if self.features else [])
        try:
            out = self.session.run(names, {self.input.name: x})
        except Exception as error:  # as above
            raise ClientError(f"{self.path.name} failed on inputs of shape {x.shape}: {error}") from error
        return to_array(out[0]), out[1] if self.features else None

    def weights(self) -> list[bytes]:
        """Return the file, as it was loaded."""
        return [self._bytes]
