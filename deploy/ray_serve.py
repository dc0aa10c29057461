"""Serves a bundle with Ray Serve, for those whose hosts are a Ray cluster already.

    pip install '.[serve]' 'ray[serve]'                                        # in a checkout, on every host
    cd deploy && serve run --working-dir . ray_serve:app bundle=/opt/bundle    # http://127.0.0.1:8000

It answers the paths of the Open Inference Protocol that devices ask, in JSON and with binary tensors. It has no keys,
quotas or ledger: whoever reaches it may ask. Give ``--address`` to run it on a cluster.
"""

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import l2h
from l2h import protocol
from l2h.bundle import BundleError, ServerBundle
from l2h.errors import SettingsError
from l2h.serving.errors import RefusalError, malformed
from l2h.serving.model.model import ServedModel

#: The most inputs of a request, and requests of a model call.
MOST, TOGETHER = 64, 64


@serve.deployment(max_ongoing_requests=4 * TOGETHER)
class Model:
    """One replica: a process with the model, which joins the requests that wait into one call of it."""

    def __init__(self, bundle: str, server: str | None) -> None:
        self._model = ServedModel(ServerBundle(bundle, server=server), MOST)
        path = f"/v2/models/{self._model.name}"
        self._infer = f"{path}/infer"
        about = {"name": "l2h", "version": l2h.__version__, "extensions": ["binary_tensor_data"]}
        self._told = {"/v2": about, path: self._model.metadata()}
        self._told |= {at: {"ready": True} for at in ("/v2/health/live", "/v2/health/ready", f"{path}/ready")}

    async def __call__(self, request: Request) -> Response:
        """Answer a request; an error is one sentence, as `l2h serve` gives it."""
        path, method = request.url.path, request.method
        try:
            if path == self._infer and method == "POST":
                return await self._scores(request)
            if path in self._told and method == "GET":
                return JSONResponse(self._told[path])
            raise RefusalError(
                404, f"there is nothing at {method} {path[:100]}: the model is at {self._infer}", "no_path"
            )
        except RefusalError as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status, {"L2H-Reason": refusal.reason})

    async def _scores(self, request: Request) -> Response:
        try:
            length = protocol.header_length(request.headers.get(protocol.LENGTH_HEADER))
            asked = protocol.decode_request(await request.body(), length, self._model.limits)
        except protocol.WireError as error:
            raise malformed(str(error)) from error
        body, headers = self._model.encode(await self._run(self._model.accept(asked)), asked)
        return Response(body, headers={name.decode(): value.decode() for name, value in headers})

    @serve.batch(max_batch_size=TOGETHER, batch_wait_timeout_s=0.001)
    async def _run(self, inputs: list[npt.NDArray[Any]]) -> list[npt.NDArray[np.float32]]:
        """Return the scores of several requests, from one call of the model, while others are read."""
        try:
            scores = await asyncio.to_thread(self._model.run, np.concatenate(inputs))
        except BundleError as error:
            raise RefusalError(500, f"the model failed: {error}", "model") from error
        return np.split(scores, np.cumsum([len(x) for x in inputs])[:-1])


def app(arguments: dict[str, str]) -> serve.Application:
    """Return what `serve run` runs: ``bundle=FOLDER``, ``replicas=2``, and of several servers ``server=NAME``."""
    if "bundle" not in arguments or arguments.keys() - {"bundle", "replicas", "server"}:
        raise SettingsError(f"give bundle=FOLDER, and perhaps replicas=2 and server=NAME; got {arguments}")
    replicas = int(arguments.get("replicas", 1))
    model: serve.Application = Model.options(num_replicas=replicas).bind(arguments["bundle"], arguments.get("server"))
    return model
