"""An ONNX file as a service of BentoML, which runs this in an environment of its own; see serving.py."""

import os
from typing import Annotated

import bentoml
import numpy as np
import onnxruntime as ort
from bentoml.validators import DType


@bentoml.service(workers=1)
class Model:
    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=10_000)
    def infer(self, x: Annotated[np.ndarray, DType("uint8")]) -> np.ndarray:
        return self.session.run(["scores"], {"x": x})[0]
