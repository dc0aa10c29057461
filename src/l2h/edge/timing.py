"""How long an answer on the device takes compared with its model calls, measured in turns on the same inputs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle import BundleError, DeviceBundle
from l2h.costs import Costs
from l2h.edge.client import EdgeClient
from l2h.errors import SettingsError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class EdgeTiming:
    """Milliseconds per input, as ``p50``, ``p90`` and ``p99``, measured in turns."""

    repeats: int  # how often each was measured
    model: dict[str, float]  # of onnxruntime's calls alone
    local: dict[str, float]  # of a whole local answer by the edge client
    remote: dict[str, float] | None  # of an answer by the server; None without a server
    answered: int  # how many of the remote repeats the server answered

    @property
    def ratio(self) -> float:
        """Median time of a local answer, divided by that of the model calls it makes."""
        return self.local["p50"] / self.model["p50"]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "repeats": self.repeats,
            "model_ms": self.model,
            "local_ms": self.local,
            "ratio_p50": round(self.ratio, 3),
            "remote_ms": self.remote,
            "remote_answered": self.answered,
        }


def measure(
    bundle: DeviceBundle,
    X: Any,
    *,
    repeats: int = 2000,
    server: str | Mapping[str, str] | None = None,
    key: str | None = None,
    verify_tls: bool | str | Path = True,
) -> EdgeTiming:
    """Time so many local answers to inputs in turn, and the server's where one is given, of several by its name."""
    if repeats < 1:
        raise SettingsError(f"repeats={repeats}: at least 1")
    X = bundle.check(X)
    which, costs = bundle.which()
    sent = bundle.judge(X, which)[1].remote(costs)
    kept = X[~sent]
    if not len(kept):
        raise BundleError(f"at {costs} the rejector sends every input given: give others, or other prices")
    model: list[float] = []
    local: list[float] = []
    with EdgeClient(bundle) as edge:
        for i in range(-min(100, repeats), repeats):  # those below 0 warm up
            x = kept[i % len(kept) :][:1]
            calls = bundle.model_calls(x)
            begun = time.perf_counter()
            calls()
            between = time.perf_counter()
            edge.predict(x)
            end = time.perf_counter()
            if i >= 0:
                model.append(between - begun)
                local.append(end - between)
    remote, answered = None, 0
    if server is not None:
        # At these prices everything is sent, where the rejector answers for every price.
        free = Costs(c_e=0.0, c_1=0.0) if bundle.manifest.rejector.specs[0].costs is None else bundle.costs
        with EdgeClient(bundle, server, key=key, costs=free, deadline=1.0, verify_tls=verify_tls) as edge:
            remote, answered = _remote(edge, X, repeats)
    return EdgeTiming(repeats, _percentiles(model), _percentiles(local), remote, answered)


def _remote(edge: EdgeClient, X: Any, repeats: int) -> tuple[dict[str, float], int]:
    edge.check()
    times, answered = [], 0
    for i in range(-min(20, repeats), repeats):
        answers = edge.predict(X[i % len(X) :][:1])
        if i >= 0 and answers.source[0] == "remote" and answers.latency is not None:
            times.append(float(answers.latency[0]))
            answered += 1
    if not times:
        raise BundleError(f"the server answered none of {repeats} requests; the last trouble: {edge.stats().error}")
    return _percentiles(times), answered


def _percentiles(seconds: list[float]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(1e3 * np.array(seconds), [50, 90, 99]).round(4).tolist()
    return {"p50": p50, "p90": p90, "p99": p99}
