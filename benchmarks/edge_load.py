"""How does an edge client stand many callers, and servers that send floods of tiny pieces?

    l2h demo --out runs/demo && l2h export runs/demo --out bundle
    python benchmarks/edge_load.py bundle

Goodput: answers per second that the server gave in time, by the number of callers that ask again at once, as a ratio to
8 callers in the same run; and how many more inputs were charged than used. Overshoot: how long after its deadline a
call came back (median, 99th percentile, most) with one calling thread and with four, while a rogue server floods it,
beside a server that is silent in the same run. ``--callers`` without numbers measures the overshoot alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from serving_process import Server

from l2h import AsyncEdgeClient, Costs, EdgeClient
from l2h.bundle import DeviceBundle
from l2h.serving.bench import random_inputs

#: Prices at which every input is sent.
ALL = Costs(c_e=0.0, c_1=0.0)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#: What a rogue sends first, what it then repeats, and in how large pieces.
FLOODS = {
    "silent": (b"", b"", 1),
    "1xx answers": (b"", b"HTTP/1.1 103 \r\n\r\n" * 4000, 1 << 16),
    "one-byte chunks": (HEAD, b"1\r\na\r\n" * 10000, 1 << 16),
    "one-byte segments": (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"a" * 1000, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 32, 128, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--deadline", type=float, default=0.2)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    bundle = DeviceBundle(arguments.bundle)
    gc.freeze()
    for kind in (AsyncEdgeClient, EdgeClient) if arguments.callers else ():
        with (
            tempfile.TemporaryDirectory() as folder,
            Server(arguments.bundle, Path(folder), log_requests=False) as server,
        ):
            base = goodput(kind, bundle, server, 8, arguments, 0.0)
            for callers in arguments.callers:
                goodput(kind, bundle, server, callers, arguments, base)
    for threads in arguments.threads:
        for flood in FLOODS:
            overshoot(bundle, flood, threads, arguments)


def goodput(kind, bundle, server, callers, arguments, base):
    """Print and return the useful answers per second of so many callers."""
    X = random_inputs(bundle.input_shape, bundle.input_dtype, 1)
    edge = kind(bundle, server.url, deadline=arguments.deadline, costs=ALL)
    before, end, found = len(server.rows()), time.monotonic() + arguments.seconds, Counter()

    async def run() -> None:
        async def caller() -> None:
            while time.monotonic() < end:
                found[(await edge.predict(X))[0].reason] += 1

        await asyncio.gather(*(caller() for _ in range(callers)))
        await edge.close()

    def call() -> None:
        while time.monotonic() < end:
            found[edge.predict(X)[0].reason] += 1

    if kind is AsyncEdgeClient:
        asyncio.run(run())
    else:
        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        edge.close()
    time.sleep(0.5)
    useful, unused = found["worth_asking"], len(server.rows()) - before - found["worth_asking"]
    rate, latency = useful / arguments.seconds, edge.stats().latency
    print(
        f"{kind.__name__}, {callers} callers: {rate:.0f} useful answers/s, ratio {rate / (base or rate):.2f}, "
        f"charged and not used {unused} ({unused / max(useful, 1):.2%}), p99 {latency['p99']:.3f} s, {dict(found)}",
        flush=True,
    )
    return rate


def overshoot(bundle: DeviceBundle, flood: str, threads: int, arguments: argparse.Namespace) -> None:
    """Print how late the calls of so many threads came back from a rogue."""
    spawn = multiprocessing.get_context("spawn")
    port = spawn.Queue()
    rogue = spawn.Process(target=serve_flood, args=(flood, port), daemon=True)
    rogue.start()
    late: list[float] = []
    X = random_inputs(bundle.input_shape, bundle.input_dtype, 1)
    address = f"http://127.0.0.1:{port.get()}"
    end = time.monotonic() + 2 * arguments.seconds  # the rogue took its time to start
    with EdgeClient(bundle, address, deadline=arguments.deadline, costs=ALL, failures=10**9) as edge:

        def call(_: int) -> None:
            while time.monotonic() < end:
                begun = time.monotonic()
                reason = edge.predict(X)[0].reason
                if reason != "crowded":  # that asked nobody
                    late.append(max(0.0, time.monotonic() - begun - arguments.deadline))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(call, range(threads)))
        stats = edge.stats()
    rogue.terminate()
    p50, p99, most = 1e3 * np.percentile(late, [50, 99, 100])
    print(
        f"{flood}, {threads} thread{'s' * (threads > 1)}: late by {p50:.1f} ms (p50), {p99:.1f} ms (p99), "
        f"{most:.1f} ms at most; {len(late)} calls, {dict(stats.reasons)}",
        flush=True,
    )


def serve_flood(flood: str, port) -> None:
    """A server that answers every request with a flood, until the client goes."""
    first, again, size = FLOODS[flood]
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port.put(listener.getsockname()[1])

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(first)
            while again:
                for i in range(0, len(again), size):
                    connection.sendall(again[i : i + size])
            connection.recv(1)

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
