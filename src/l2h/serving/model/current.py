"""The model in use, and its replacement by a new one while requests go on."""

import asyncio
from pathlib import Path

from l2h.bundle import ServerBundle
from l2h.errors import L2HError
from l2h.serving.errors import ServingError
from l2h.serving.model.model import ServedModel
from l2h.serving.process.logs import log_event
from l2h.serving.process.metrics import Metrics
from l2h.serving.process.watch import Signature, signature


class CurrentModel:
    """Holds the model in use. A request keeps the model it was read for, so that a replacement drops none.

    Args:
        folder: of the bundle.
        threads: of one model call.
        most: inputs of one call.
        metrics: count replacements.

    Raises:
        BundleError: the bundle is missing or damaged.
        ServingError: its model cannot be run.
    """

    def __init__(self, folder: Path, threads: int, most: int, metrics: Metrics) -> None:
        self._folder, self._threads, self._most, self._metrics = folder, threads, most, metrics
        self._seen = self._signature()
        self._lock = asyncio.Lock()
        self._use(self._load())

    async def reload(self, *, force: bool) -> None:
        """Take over the folder's bundle if it changed, or in any case; one that cannot be used changes nothing."""
        async with self._lock:
            now = self._signature()
            if (now == self._seen and not force) or now[0] is None:  # a folder being replaced has none for a moment
                return
            self._seen = now
            before = self.model
            try:
                model = await asyncio.to_thread(self._load)
                if model.name != before.name:
                    raise ServingError(f"the new bundle is named {model.name!r}, this server serves {before.name!r}")
                if model.interface != before.interface:
                    raise ServingError(
                        "the new bundle has other classes or inputs, and devices in the field have those of the old: "
                        "start a server for it"
                    )
            except L2HError as error:
                self._metrics.reloads.labels("refused").inc()
                log_event("error", "bundle_refused", error=str(error), serving=before.version)
                return
            if model.version == before.version:
                log_event("info", "bundle_unchanged", version=model.version)
                return
            self._metrics.model.labels(before.name, before.version).set(0)
            self._metrics.reloads.labels("taken").inc()
            self._use(model)
            log_event("info", "bundle_taken", version=model.version, before=before.version)

    def _load(self) -> ServedModel:
        bundle = ServerBundle(self._folder, threads=self._threads)
        try:
            return ServedModel(bundle, self._most)
        except L2HError:
            raise
        except Exception as error:  # what onnxruntime raises has no common class
            raise ServingError(f"the model of {self._folder} cannot be run: {error}") from error

    def _use(self, model: ServedModel) -> None:
        self.model = model
        path = f"/v2/models/{model.name}"
        self.infer_paths = {f"{path}/infer", f"{path}/versions/{model.version}/infer"}
        self._metrics.model.labels(model.name, model.version).set(1)

    def _signature(self) -> tuple[Signature, ...]:
        """Of the manifest, and of the model's file, for a copy that was not finished when we looked."""
        return tuple(signature(self._folder / name) for name in ("manifest.json", "server.onnx"))
