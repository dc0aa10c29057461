"""An ONNX file behind PyTriton, which runs this in an environment of its own; see serving.py.

python pytriton_server.py MODEL.onnx NAME PORT CLASSES SIZE...
"""

import sys

import numpy as np
import onnxruntime as ort
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

path, name, port, classes, *shape = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@batch
def infer(x: np.ndarray) -> list[np.ndarray]:
    return [session.run(["scores"], {"x": x})[0]]


config = TritonConfig(http_port=int(port), http_address="127.0.0.1", allow_grpc=False, allow_metrics=False)
with Triton(config=config) as triton:
    triton.bind(
        model_name=name,
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.uint8, shape=tuple(map(int, shape)))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(int(classes),))],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=1000)),
    )
    triton.serve()
