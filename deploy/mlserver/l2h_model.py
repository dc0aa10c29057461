"""The server of a bundle as a model of MLServer, which needs ``mlserver`` and ``onnxruntime`` and nothing of L2H.

Put ``manifest.json`` and ``server.onnx`` into a folder ``bundle`` beside this file, write the name of the bundle into
``model-settings.json``, and run ``mlserver start FOLDER``. Devices ask it with ``l2h.EdgeClient(..., binary=False)``.
"""

import hashlib
import json
from pathlib import Path

import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

DATATYPES = {"uint8": "UINT8", "float32": "FP32"}


class BundleModel(MLModel):
    """Answers with the scores of the bundle in the folder that ``parameters.uri`` names."""

    async def load(self) -> bool:
        """Read the bundle; raise where it is damaged, or needs what only ``l2h serve`` does."""
        folder = Path(await get_model_uri(self.settings))
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        bundle, servers = manifest["name"], manifest.get("servers") or {"server": manifest["server"]}
        models = {bundle if [*servers] == ["server"] else f"{bundle}-{name}": part for name, part in servers.items()}
        if self.name not in models:
            raise ValueError(f"model-settings.json names {self.name!r}; the bundle has {', '.join(models)}")
        self._part = models[self.name]
        if self._part["file"] is None or self._part.get("preprocessing") or self._part.get("feed"):
            raise ValueError(f"{self.name}: its inputs are not those of an ONNX file: use `l2h serve`")
        content = (folder / self._part["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["files"][self._part["file"]]["sha256"]:
            raise ValueError(f"{folder / self._part['file']} is not the file that the manifest describes")
        self._shape, self._datatype = manifest["input"]["shape"], DATATYPES[manifest["input"]["dtype"]]
        self.inputs = [MetadataTensor(name="x", datatype=self._datatype, shape=[-1, *self._shape])]
        self.outputs = [MetadataTensor(name="scores", datatype="FP32", shape=[-1, len(manifest["classes"])])]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return the scores of a request's input ``x``."""
        given = payload.inputs[0]
        if len(payload.inputs) > 1 or (given.name, given.datatype) != ("x", self._datatype):
            raise InferenceError(f"the model takes one input, 'x', of {self._datatype}")
        x = NumpyCodec.decode_input(given)
        if list(x.shape[1:]) != self._shape:
            raise InferenceError(f"'x' has the shape {[-1, *self._shape]}; got {list(x.shape)}")
        (scores,) = self._session.run([self._part["output"]], {self._part["input"]: x})
        answer = NumpyCodec.encode_output(name="scores", payload=scores)
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[answer])
