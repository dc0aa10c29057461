"""Time an edge decision at a budget, beside the client's own call: both with onnxruntime on one thread, in one run.

    OMP_NUM_THREADS=1 python benchmarks/edge_budget.py --budget 1

The client is LeNet-5 on 32x32 images. How long nets take does not depend on what they have learned, so all are trained
for a moment on random images. A decision is one run of the bundle's ``rejector.onnx``, which holds the client too; an
answer is all of ``EdgeClient.predict`` for an input that stays on the device. The three take turns. What other programs
take of the machine only adds to a time, so the least one and the lowest twentieth are printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import l2h
from l2h.bundle.sessions import make_session
from l2h.models import build_scaled

RUNS = 5  # of one turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="1")
    parser.add_argument("--turns", type=int, default=1500)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (80, 3, 32, 32), dtype=np.uint8), np.arange(80) % 10
    stage = l2h.StageSettings(epochs=1)
    settings = l2h.Settings(server=stage, rejector=stage, folds=2, copies=0, threads=1, device="cpu")
    client = build_scaled("lenet5", (3, 32, 32), 10)
    system = l2h.HelpSystem(client, "lenet5", settings=settings, budget=arguments.budget)
    system.fit(X, y).calibrate(X, y)
    work = system.require_fitted().multiply_adds()
    print(f"{system.require_fitted().rejector_options}: {work['rejector'] / work['client']:.2f} of the client's work")
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        system.export(bundle)
        alone, joined = (session(bundle / f"{name}.onnx") for name in ("client", "rejector"))
        dear = l2h.Costs(c_e=10.0)  # nothing is asked
        with l2h.EdgeClient(bundle, server="http://127.0.0.1:9", costs=dear) as edge:
            report(
                {
                    "the client's own call": lambda: alone.run(["log_probability"], {"x": X[:1]}),
                    "a decision": lambda: joined.run(["log_probability", "scores"], {"x": X[:1]}),
                    "an answer of EdgeClient": lambda: edge.predict(X[:1]),
                },
                arguments.turns,
            )


def session(path: Path) -> Any:
    return make_session(path.read_bytes(), path.name, 1)


def report(calls: dict[str, Callable[[], Any]], turns: int) -> None:
    """Time all calls in turns; print the least time and the lowest twentieth of each, in units of the first too."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            begun = time.perf_counter()
            for _ in range(RUNS):
                call()
            times[name].append((time.perf_counter() - begun) / RUNS * 1e6)
    figures = {name: np.quantile(values, [0.0, 0.05]) for name, values in times.items()}
    first = next(iter(figures.values()))
    for name, values in figures.items():
        ratios = values / first
        print(f"{name}: {values[0]:.1f} and {values[1]:.1f} us, {ratios[0]:.2f} and {ratios[1]:.2f} times the first")


if __name__ == "__main__":
    main()
