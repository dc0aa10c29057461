"""Measure a router between two language models: APGR over five splits, on other data, and the time of a decision.

    OMP_NUM_THREADS=1 python benchmarks/routing.py DATA/llm-mmlu.parquet --other DATA/llm-gsm8k.parquet \\
        --out results/routing

Each split trains on four fifths of the table and is tested on the fifth that is left; every row is tested once. All
choices are made by cross-validation within the four fifths. The router for the other table is trained on the first
split's four fifths. The time of a decision is that of ``predict`` for one prompt, beside that of what it
may save: one request with the prompt to a server on this machine that answers at once.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import l2h
from l2h.data.outcomes import OutcomeTable, read_outcomes
from l2h.metrics import OutcomeReport, spread

COSTS = l2h.Costs(c_e=0.1)
FOLDS = 5
PROMPTS = 300


def figures(report: OutcomeReport) -> dict[str, float]:
    """The figures of one test part."""
    assert report.routing is not None
    out = {**report.routing.as_dict(), "sent": report.reject_rate, "ece_client": report.ece["client"]}
    out["ece_server"] = report.ece["server"]
    return out | {f"risk_{name}": value for name, value in report.risk.as_dict().items() if value is not None}


def measure(router: l2h.Router, part: OutcomeTable) -> dict[str, float]:
    return figures(router.evaluate(part.X, part.client_right, part.server_right, COSTS, dataset=part.name))


def train(part: OutcomeTable) -> l2h.Router:
    return l2h.HelpSystem.fit_outcomes(part.X, part.client_right, part.server_right, dataset=part.name)


class _Quick(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # its answers come in two writes

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        return


def microseconds(action: Callable[[str], Any], prompts: list[str], rounds: int = 5) -> float:
    """The median over rounds of the mean time for one prompt."""
    means = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for prompt in prompts:
            action(prompt)
        means.append((time.perf_counter() - begun) / len(prompts) * 1e6)
    return float(np.median(means))


def speed(router: l2h.Router, prompts: list[str]) -> dict[str, float]:
    """Time one decision, one judgement in a batch, and what they are compared with."""
    server = HTTPServer(("127.0.0.1", 0), _Quick)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)

    def ask(prompt: str) -> None:
        connection.request("POST", "/", json.dumps({"prompt": prompt}).encode())
        connection.getresponse().read()

    begun = time.perf_counter()
    router.judge(prompts)
    batch = (time.perf_counter() - begun) / len(prompts) * 1e6
    out = {
        "decision": microseconds(lambda prompt: router.predict([prompt], COSTS), prompts),
        "decision in a batch": batch,
        "request to an idle server on this machine": microseconds(ask, prompts),
    }
    connection.close()  # the server answers one connection at a time, to its end
    server.shutdown()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = read_outcomes(options.table)
    order = np.random.default_rng(0).permutation(len(table))
    rows: list[dict[str, Any]] = []
    for k, tested in enumerate(np.array_split(order, FOLDS)):
        begun = time.perf_counter()
        router = train(table.part(np.setdiff1d(order, tested)))
        seconds = time.perf_counter() - begun
        rows.append({"part": f"{table.name} {k}", **measure(router, table.part(np.sort(tested))), "seconds": seconds})
        print(rows[-1], router.choice, flush=True)
        if k == 0:
            first, prompts = router, [table.X[i] for i in tested[:PROMPTS]]
    for name in rows[0]:
        if name != "part":
            print(f"{name:16s} {spread([row[name] for row in rows])}")
    if options.other is not None:
        rows.append({"part": f"{table.name} -> {options.other.stem}", **measure(first, read_outcomes(options.other))})
        print(rows[-1])
    times = speed(first, prompts)
    for name, value in times.items():
        print(f"{name}: {value:.0f} microseconds, {value / times['decision']:.2f} of a decision")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "routing.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
