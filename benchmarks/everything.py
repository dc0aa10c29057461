"""What do dashboard, traces, metrics, audits and reports cost, and does anything grow?

    l2h demo --out runs/demo && l2h export runs/demo --out bundle
    python benchmarks/everything.py bundle --rounds 5 --seconds 5 --answers 1000000

Each figure is a ratio of two clients or servers that take turns in the same run, one with everything on, the other with
nothing of it (both have keys, ledger and metrics): requests per second of the server at 64 connections; answers per
second of devices that ask, and of a device that keeps. The median round counts. Then one device with everything on
gives so many answers, of which it asks about a part, and the memory of device and server is read on the way.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from everything import Everything
from serving_process import Server

from l2h import Costs, EdgeClient
from l2h.bundle.sessions import random_inputs
from l2h.serving.bench import measure_load

THREADS = 4
#: Prices at which every input is asked about, and at which every one is kept.
ASK, KEEP = Costs(c_e=0.0, c_1=0.0), Costs(c_e=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--answers", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        full, keys = Everything(folders[0]), Everything(folders[1])
        for each in (full, keys):
            stack.callback(each.collector.close)
        settings = {"log_requests": False}
        server = stack.enter_context(Server(arguments.bundle, folders[0], **full.settings, **settings))
        plain = stack.enter_context(Server(arguments.bundle, folders[1], keys=keys.settings["keys"], **settings))

        def device(name: str | None, costs: Costs, **options: Any) -> EdgeClient:
            """A device with everything on, or one without a name and without all of it."""
            own = {"key": keys.key} if name is None else full.options(name, **options)
            address = plain.url if name is None else server.url
            return stack.enter_context(EdgeClient(arguments.bundle, address, costs=costs, deadline=5.0, **own))

        first = device("asks", ASK)
        model, X = first.bundle.manifest.name, random_inputs(first.bundle.input_shape, first.bundle.input_dtype, 256)
        asking = first, device(None, ASK)
        # A request takes many times as long as an answer of the device: what the audit asks is counted by itself.
        keeping = device("keeps", KEEP, audit=0.0), device(None, KEEP)
        audited = device("audits", KEEP), keeping[1]

        def load(running: Server, key: str) -> float:
            options = {"connections": arguments.connections, "seconds": arguments.seconds}
            found = measure_load(running.url, model, X[:1], binary=True, key=key, **options)
            assert set(found.statuses) == {"200"}, found.statuses
            return found.requests_per_second

        compare("server, requests/s", arguments.rounds, lambda: load(server, full.key), lambda: load(plain, keys.key))
        cases = (
            ("devices that ask", asking, THREADS),
            ("a device that keeps, without audit", keeping, 1),
            ("a device that keeps, 1% audited", audited, 1),
        )
        for what, pair, threads in cases:
            turns = [lambda edge=edge, n=threads: answers_per_second(edge, X, arguments.seconds, n) for edge in pair]
            compare(f"{what}, answers/s", arguments.rounds, *turns)
        watch_memory(audited[0], server, X, arguments.answers)


def compare(what: str, rounds: int, watched: Callable[[], float], plain: Callable[[], float]) -> None:
    """Print both figures of every round, and the median of their ratios."""
    pairs = [(watched(), plain()) if number % 2 else (plain(), watched())[::-1] for number in range(rounds)]
    ratios = [on / off for on, off in pairs]
    shown = ", ".join(f"{on:.0f}/{off:.0f}" for on, off in pairs)
    print(f"{what}: with everything on {statistics.median(ratios):.3f} of without (rounds: {shown})", flush=True)


def answers_per_second(edge: EdgeClient, X: np.ndarray[Any, Any], seconds: float, threads: int) -> float:
    def call(number: int) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            edge.predict(X[(number + count) % len(X)])
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(call, range(threads))) / seconds


def watch_memory(edge: EdgeClient, server: Server, X: np.ndarray[Any, Any], answers: int) -> None:
    """Give so many answers, one in ten of them asked about, and print the memory of both after each tenth."""
    first: tuple[int, int] | None = None
    for tenth in range(1, 11):
        for count in range(answers // 10):
            edge.predict(X[count % len(X)], ASK if count % 10 == 0 else None)
        now = resident(), server.memory()
        first = first or now
        print(f"after {tenth * (answers // 10)} answers: device {now[0]} MiB, server {now[1]} MiB", flush=True)
    print(f"growth from the first tenth to the last: device {now[0] - first[0]} MiB, server {now[1] - first[1]} MiB")


def resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


if __name__ == "__main__":
    main()
