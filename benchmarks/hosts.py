"""Compare servers that share their accounts in PostgreSQL with servers that each have an SQLite file, in one run.

    python benchmarks/hosts.py --out results/hosts

One host is `l2h serve` with two workers, a key and a LeNet-5 on 32x32 images. First one host is asked directly, then
two behind nginx by deploy/nginx.conf: 64 connections, one image per request, in binary tensors. PostgreSQL has its own
settings, with every commit on the disk (``fsync`` on). SQLite has those of L2H, which leave that to the operating
system. All run on this machine, so the hosts share its processors with nginx, PostgreSQL and the load: the ratios
count. What the database takes of the processors, a host with processors of its own would have: so the processor time
of the hosts' own processes per request is measured too. They take turns for several rounds, and the median round
counts. At last one host is asked on 1 to 64
connections, to see how many requests in progress an autoscaler should allow a host. Writes hosts.csv and prints the
ratios, and the bytes that a row of the ledger takes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from nginx_process import nginx
from postgres_process import Postgres
from serving_process import Server

from l2h.serving.accounts import open_keys
from l2h.serving.bench import measure_load
from serving import SHAPE, bundle

KINDS = ("SQLite", "PostgreSQL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    X = np.random.default_rng(1).integers(0, 256, (1, *SHAPE), dtype=np.uint8)
    postgres = Postgres(fsync=True)

    def measure(number: int, hosts: int, accounts: str, folder: Path, connections: list[int]) -> None:
        """Load so many hosts, on so many connections one after the other."""
        url = postgres.new() if accounts == "PostgreSQL" else None
        with running(lenet, folder, hosts, url) as (address, key, servers):
            for each in connections:
                load = {"connections": each, "seconds": arguments.seconds}
                before = used([server.process.pid for server in servers]), used([postgres.process.pid])
                found = measure_load(address, "lenet5", X, binary=True, key=key, **load)
                if set(found.statuses) != {"200"}:
                    raise SystemExit(f"not every request was answered with 200: {found.statuses}")
                row = {"round": number, "hosts": hosts, "accounts": accounts, "connections": each}
                row |= {"requests_per_second": found.requests_per_second, "p99_ms": found.latency_ms["p99"]}
                after = used([server.process.pid for server in servers]), used([postgres.process.pid])
                for name, less, more in zip(("hosts_cpu_us", "database_cpu_us"), before, after, strict=True):
                    row[name] = round(1e6 * (more - less) / found.requests, 1)
                rows.append(row | {"bytes_per_row": None if url is None else row_bytes(url)})
                print(rows[-1], flush=True)

    try:
        with tempfile.TemporaryDirectory() as made:
            lenet, folder = bundle("lenet5", Path(made) / "lenet"), Path(made)
            for number in range(arguments.rounds):
                for hosts in (1, 2):
                    for accounts in KINDS:
                        where = folder / f"{number}-{hosts}-{accounts}"
                        measure(number, hosts, accounts, where, [arguments.connections])
            measure(arguments.rounds, 1, "SQLite", folder / "one", [1, 2, 4, 8, 16, 32, 64])
    finally:
        postgres.remove()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "hosts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    tell([row for row in rows if row["round"] < arguments.rounds])


@contextmanager
def running(lenet: Path, folder: Path, hosts: int, accounts: str | None) -> Iterator[tuple[str, str, list[Server]]]:
    """The address of so many hosts, a key, and the hosts; several are behind nginx."""
    folder.mkdir()
    keys = folder / "keys.json" if accounts is None else accounts
    _, key = open_keys(keys).add("bench")
    where = {"keys": str(keys)} if accounts is None else {"accounts": accounts}
    with ExitStack() as stack:
        options = {"workers": 2, "max_per_address": 0, "log_requests": False, **where}
        servers = [stack.enter_context(Server(lenet, folder / str(i), **options)) for i in range(hosts)]
        ports = [server.port for server in servers]
        port = ports[0] if hosts == 1 else stack.enter_context(nginx(folder / "nginx", ports))
        yield f"http://127.0.0.1:{port}", key, servers


def used(pids: list[int]) -> float:
    """Return the seconds of processor time that these processes and all below them have used."""
    there = [one for pid in pids for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    return sum(one.cpu_times().user + one.cpu_times().system for one in there)


def row_bytes(url: str) -> float:
    """Return how many bytes of tables and indexes a row of the ledger takes."""
    with psycopg.connect(url) as db:
        found = db.execute(
            "SELECT pg_total_relation_size('l2h.charges')::float8 / count(*) FROM l2h.charges"
        ).fetchone()
    assert found is not None
    return round(float(found[0]), 1)


def tell(rows: list[dict[str, Any]]) -> None:
    """Print the medians over the rounds, and the ratios."""
    for hosts in (1, 2):
        rates = {
            kind: [row["requests_per_second"] for row in rows if (row["hosts"], row["accounts"]) == (hosts, kind)]
            for kind in KINDS
        }
        for kind, each in rates.items():
            print(f"{hosts} host(s), {kind}: {statistics.median(each):.0f} requests/s (", *map(round, each), ")")
        ratio = statistics.median(rates["PostgreSQL"]) / statistics.median(rates["SQLite"])
        print(f"{hosts} host(s): PostgreSQL has {ratio:.2f} of the requests per second of SQLite")
        own = {
            kind: statistics.median(
                row["hosts_cpu_us"] for row in rows if (row["hosts"], row["accounts"]) == (hosts, kind)
            )
            for kind in KINDS
        }
        told = ", ".join(f"{kind} {each:.0f}" for kind, each in own.items())
        print(f"{hosts} host(s): microseconds of the hosts' processors per request: {told}; requests per")
        print(f"    second of them with PostgreSQL are {own['SQLite'] / own['PostgreSQL']:.2f} of those with SQLite")
    print("bytes of a row:", statistics.median(row["bytes_per_row"] for row in rows if row["bytes_per_row"]))


if __name__ == "__main__":
    main()
