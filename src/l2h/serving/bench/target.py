"""Measure what ``l2h bench serve`` names: a running server, or a bundle that a server is started for."""

import ssl
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l2h.bundle.random import random_inputs
from l2h.errors import SettingsError
from l2h.serving.bench.load import measure_load
from l2h.serving.bench.server import describe, raw_throughput, running_server

#: Results of :func:`l2h.serving.bench.load.measure_load` as plain values, for tensors in ``JSON`` and in ``binary``.
Results = dict[str, dict[str, Any]]


def measure_running(
    address: str, model: str | None, *, inputs: int, key: str | None, ca_file: Path | None, **load: Any
) -> Results:
    """Measure a running server with so many inputs per request.

    Raises:
        SettingsError: a certificate file that cannot be used.
        LoadError: the server cannot be reached, or gives no good answer.
    """
    context = _trusting(ca_file)
    name, shape, dtype = describe(address, model, key, context)
    return _measure_both(address, name, random_inputs(shape, dtype, inputs), key=key, context=context, **load)


def measure_bundle(
    bundle: Path, settings: Mapping[str, Any], *, inputs: int, seconds: float, **load: Any
) -> tuple[Results, dict[str, Any]]:
    """Measure a server started for a bundle, with keys, ledger and metrics on, and the model alone.

    Raises:
        LoadError: the server does not start, or gives no good answer.
    """
    with running_server(bundle, **settings) as (address, key, model):
        X = random_inputs(model.input_shape, model.input_dtype, inputs)
        results = _measure_both(address, model.name, X, key=key, seconds=seconds, **load)
    return results, raw_throughput(model, seconds=min(seconds, 3.0))


def _measure_both(address: str, name: str, X: Any, **options: Any) -> Results:
    kinds = {"JSON": False, "binary": True}
    return {kind: asdict(measure_load(address, name, X, binary=kinds[kind], **options)) for kind in kinds}


def _trusting(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--ca-file {ca_file}: {error.strerror or error}") from error
