"""Compare our server with others and the model alone, and an answer on the device with its model calls, in one run.

    python benchmarks/serving.py --out results/serving --mlserver .venv-mlserver/bin/python --ray \
        --bentoml .venv-bentoml/bin/python --pytriton .venv-pytriton/bin/python

First our server, MLServer, Ray Serve, BentoML and PyTriton run a LeNet-5 on 32x32 images, with 64 connections and one
image per request: requests per second and the 99th percentile of their times. Ours has a key, ledger, metrics and
batching on. Then ours runs an AlexNet of 57 million weights, compared with onnxruntime alone at its best batch size. At
last a local answer of the edge client is compared with the one call of its LeNet and rejector in one graph.
``--servers-only`` leaves out both. All take turns for several rounds, and the median round counts. The load is that of
`l2h bench serve`. Writes serving.csv and prints the ratios.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "field"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from mlserver_process import mlserver
from others import bentoml_server, pytriton_server
from ray_process import ray_serve

from l2h import HelpSystem, Settings, StageSettings
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge.timing import measure as time_edge
from l2h.models import InputScale, build_scaled
from l2h.serving.bench import LoadResult, measure_load, measure_posts, raw_throughput, running_server
from l2h.serving.process.config import processors

SHAPE, CLASSES = (3, 32, 32), 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlserver", type=Path, help="the Python that has mlserver; without it MLServer is left out")
    parser.add_argument(
        "--ray", action="store_true", help="Ray Serve, too, by deploy/ray_serve.py: as it comes, and with HAProxy"
    )
    parser.add_argument("--servers-only", action="store_true", help="LeNet-5 on all servers, and nothing else")
    parser.add_argument("--bentoml", type=Path, help="the Python that has bentoml and onnxruntime")
    parser.add_argument("--pytriton", type=Path, help="the Python that has nvidia-pytriton and onnxruntime")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lenet = bundle("lenet5", folder / "lenet")
        alexnet = lenet if arguments.servers_only else bundle("alexnet", folder / "alexnet")
        for number in range(arguments.rounds):
            rows += round_of(number, lenet, alexnet, arguments, folder)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "serving.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    tell(rows)


def bundle(server: str, folder: Path) -> Path:
    """A bundle whose server is this net, untrained: how fast it is does not depend on what it knows."""
    torch.manual_seed(0)
    net = build_scaled(server, SHAPE, CLASSES, InputScale.to_unit_range(SHAPE)).eval()
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (80, *SHAPE), dtype=np.uint8), np.arange(80) % CLASSES
    stage = StageSettings(epochs=1, batch=40)
    settings = Settings(server=stage, rejector=stage, honest="holdout", device="cpu")
    client = build_scaled("lenet5", SHAPE, CLASSES).eval()
    system = HelpSystem(client, net, settings=settings, train_server=False, rejector_options={"width": 1})
    system.fit(X, y).export(folder, name=server)
    return folder


def round_of(
    number: int, lenet: Path, alexnet: Path, arguments: argparse.Namespace, folder: Path
) -> list[dict[str, Any]]:
    rows = []

    def note(
        system: str, model: str, tensors: str, workers: int, rate: float, p99: float | None = None, batch: int = 1
    ) -> None:
        rows.append(
            {
                "round": number,
                "system": system,
                "model": model,
                "tensors": tensors,
                "workers": workers,
                "inputs_per_request": batch,
                "inputs_per_second": round(rate, 1),
                "p99_ms": p99,
            }
        )
        print(rows[-1], flush=True)

    options = {"connections": arguments.connections, "seconds": arguments.seconds}

    def checked(result: LoadResult) -> tuple[float, float]:
        """Requests per second and the 99th percentile; every one must be answered with 200."""
        if set(result.statuses) != {"200"}:
            raise SystemExit(f"not every request was answered with 200: {result.statuses}")
        return result.requests_per_second, result.latency_ms["p99"]

    def load(address: str, model: str, tensors: str, key: str | None = None) -> tuple[float, float]:
        return checked(measure_load(address, model, X, binary=tensors == "binary", key=key, **options))

    X = np.random.default_rng(1).integers(0, 256, (1, *SHAPE), dtype=np.uint8)
    for workers in arguments.workers:
        with running_server(lenet, workers=workers, log_requests=False) as (address, key, model):
            for tensors in ("json", "binary"):
                note("l2h", "lenet5", tensors, workers, *load(address, model.name, tensors, key))
    if arguments.mlserver is not None:
        with mlserver(folder / f"mlserver-{number}", lenet, "lenet5", arguments.mlserver) as address:
            note("MLServer", "lenet5", "json", 1, *load(address, "lenet5", "json"))
    for name, fast in {"Ray Serve": False, "Ray Serve, HAProxy": True}.items() if arguments.ray else ():
        with ray_serve(folder / f"ray-{number}-{fast}", lenet, fast=fast) as address:
            for tensors in ("json", "binary"):
                note(name, "lenet5", tensors, 1, *load(address, "lenet5", tensors))
    if arguments.bentoml is not None:
        with bentoml_server(arguments.bentoml, lenet / "server.onnx", folder / f"bentoml-{number}") as address:
            body, headers = json.dumps({"x": X.tolist()}).encode(), {"Content-Type": "application/json"}
            note(
                "BentoML",
                "lenet5",
                "json",
                1,
                *checked(measure_posts(address, "/infer", body, headers, inputs=1, **options)),
            )
    if arguments.pytriton is not None:
        where = folder / f"pytriton-{number}"
        with pytriton_server(arguments.pytriton, lenet / "server.onnx", "lenet5", SHAPE, CLASSES, where) as address:
            for tensors in ("json", "binary"):
                note("PyTriton", "lenet5", tensors, 1, *load(address, "lenet5", tensors))
    if arguments.servers_only:
        return rows
    for workers in arguments.workers:
        with running_server(alexnet, workers=workers, log_requests=False) as (address, key, model):
            note("l2h", "alexnet", "binary", workers, *load(address, model.name, "binary", key))
    alone = raw_throughput(ServerBundle(alexnet, threads=processors()), seconds=3 * arguments.seconds)
    note("onnxruntime alone", "alexnet", "none", 1, alone["inputs_per_second"], batch=alone["batch"])
    inputs = np.random.default_rng(2).integers(0, 256, (256, *SHAPE), dtype=np.uint8)
    device = time_edge(DeviceBundle(lenet), inputs)
    note("local answer on the device", "lenet5", "none", 1, 1000 / device.local["p50"])
    note("its model call alone", "lenet5", "none", 1, 1000 / device.model["p50"])
    return rows


def tell(rows: list[dict[str, Any]]) -> None:
    """Medians over the rounds, and the ratios."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    late: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        group = tuple(row[k] for k in ("system", "model", "tensors", "workers"))
        groups.setdefault(group, []).append(row["inputs_per_second"])
        late.setdefault(group, []).append(row["p99_ms"] or 0.0)
    medians = {group: statistics.median(values) for group, values in groups.items()}
    p99 = {group: statistics.median(values) for group, values in late.items()}
    for group, value in medians.items():
        slowest = f", p99 {p99[group]:.1f} ms" if p99[group] else ""
        print(*group, round(value), "(", *map(round, groups[group]), ")" + slowest)
    others = [
        group for group in medians if group[0] in ("MLServer", "Ray Serve", "Ray Serve, HAProxy", "BentoML", "PyTriton")
    ]
    here = {group[0]: value for group, value in medians.items()}
    for group, value in medians.items():
        if group[0] == "l2h" and group[1] == "lenet5":
            for other in others:
                print(
                    f"{group[2]}, {group[3]} worker(s): {value / medians[other]:.2f} times the requests per second of "
                    f"{other[0]} ({other[2]}, {other[3]}), {p99[group] / p99[other]:.2f} times its p99"
                )
        if group[0] == "l2h" and group[1] == "alexnet":
            share = 100 * value / here["onnxruntime alone"]
            print(f"alexnet, {group[3]} worker(s): {share:.0f}% of onnxruntime alone")
    if "its model call alone" in here:
        ratio = here["its model call alone"] / here["local answer on the device"]
        print(f"a local answer takes {ratio:.2f} times its model call")


if __name__ == "__main__":
    main()
