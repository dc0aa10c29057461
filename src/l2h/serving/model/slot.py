"""The model in use, and its exchange for a new one while requests go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from l2h.errors import L2HError
from l2h.serving.errors import ServingError
from l2h.serving.model.model import Model
from l2h.serving.process.metrics import Metrics
from l2h.serving.process.watch import Signature, signature

log = logging.getLogger("l2h.serving")


def load_model(folder: Path, threads: int, most: int) -> Model:
    """The server's half of a bundle, verified and run once.

    Raises:
        BundleError: it is missing or damaged.
        ServingError: it cannot be run.
    """
    from l2h.bundle import ServerBundle

    bundle = ServerBundle(folder, threads=threads)
    try:
        return Model(bundle, most)
    except L2HError:
        raise
    except Exception as error:  # what onnxruntime raises has no common class
        raise ServingError(f"the model of {folder} cannot be run: {error}") from error


class Slot:
    """Holds the model in use. A request keeps the model it was read for, so that an exchange drops none.

    Args:
        folder: of the bundle.
        load: gives its model; called in another thread.
        metrics: told of exchanges.
    """

    def __init__(self, folder: Path, load: Callable[[], Model], metrics: Metrics) -> None:
        self._folder, self._load, self._metrics = folder, load, metrics
        self._seen = self._signature()
        self._lock = asyncio.Lock()
        self._use(load())

    async def look(self, force: bool = False) -> bool:
        """Take the folder's bundle over if it changed; whether it was. One that cannot be used changes nothing."""
        async with self._lock:
            now = self._signature()
            if (now == self._seen and not force) or now[0] is None:  # a folder being replaced has none for a moment
                return False
            self._seen = now
            before = self.model
            try:
                model = await asyncio.to_thread(self._load)
                if model.name != before.name:
                    raise ServingError(f"the new bundle is named {model.name!r}, this server serves {before.name!r}")
                if model.takes != before.takes:
                    raise ServingError(
                        "the new bundle has other classes or inputs, and devices in the field have those of the old: "
                        "start a server for it"
                    )
            except L2HError as error:
                self._metrics.reloads.labels("refused").inc()
                log.error("bundle_refused", extra={"fields": {"error": str(error), "serving": before.version}})
                return False
            if model.version == before.version:
                log.info("bundle_unchanged", extra={"fields": {"version": model.version}})
                return False
            self._metrics.model.labels(before.name, before.version).set(0)
            self._metrics.reloads.labels("taken").inc()
            self._use(model)
            log.info("bundle_taken", extra={"fields": {"version": model.version, "before": before.version}})
            return True

    def _use(self, model: Model) -> None:
        self.model = model
        path = f"/v2/models/{model.name}"
        self.infer_paths = {f"{path}/infer", f"{path}/versions/{model.version}/infer"}
        self._metrics.model.labels(model.name, model.version).set(1)

    def _signature(self) -> tuple[Signature, ...]:
        """Of the manifest, and of the model's file, for a copy that was not finished when we looked."""
        return tuple(signature(self._folder / name) for name in ("manifest.json", "server.onnx"))
