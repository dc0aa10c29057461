"""Measure what pacing gains over first come, first served under one hard cap, and what the limiter costs per call.

    python benchmarks/pacing.py [--seeds 20] [--hours 6]

Each stream has its own pattern of arrivals. Every policy has the same budget of 100 in any sliding hour, and
never asks where nothing is expected to be saved. The optimum knows the whole stream of scores in advance.
Needs scipy.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from l2h.limits import Limiter, RateLimit

HOUR = 3600.0
LIMIT = RateLimit(100, per="1h")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Stream:
    """Arrival times in seconds, the rejector's scores, and whether each side is right."""

    time: Array
    score: Array
    client: NDArray[np.bool_]
    server: NDArray[np.bool_]


def rate_per_hour(shape: str, t: Array, rng: np.random.Generator) -> Array:
    """Expected arrivals an hour at the times t."""
    if shape == "steady":
        return np.full_like(t, 1000.0)
    if shape == "short bursts":  # about a minute at full rate every ten
        return np.where(on_off(t, 60, 540, rng), 8000.0, 200.0)
    if shape == "long bursts":  # about twenty minutes at full rate every eighty
        return np.where(on_off(t, 1200, 3600, rng), 3500.0, 150.0)
    if shape == "day and night":
        return 1000 * (1 + 0.9 * np.sin(2 * math.pi * t / (4 * HOUR)))
    if shape == "one spike":
        return np.where((t > 2.2 * HOUR) & (t < 2.4 * HOUR), 12000.0, 700.0)
    if shape == "growing":
        return 200 * 10 ** (t / t[-1])
    raise ValueError(shape)


SHAPES = ("steady", "short bursts", "long bursts", "day and night", "one spike", "growing")


def on_off(t: Array, mean_on: float, mean_off: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A random telegraph with exponential stays."""
    edges, on, at = [0.0], False, 0.0
    while at < t[-1]:
        at += rng.exponential(mean_on if on else mean_off)
        on = not on
        edges.append(at)
    return (np.searchsorted(edges, t, side="right") - 1) % 2 == 1


def stream(shape: str, hours: float, seed: int) -> Stream:
    """A stream of one shape: the client is wrong about one time in five, and the score knows roughly when."""
    rng = np.random.default_rng(seed)
    grid = np.arange(0.0, hours * HOUR, 1.0)
    count = rng.poisson(rate_per_hour(shape, grid, rng) / HOUR)
    t = np.sort(np.repeat(grid, count) + rng.random(count.sum()))
    doubt = rng.beta(0.8, 3.2, len(t))
    # The score is the expected saving at c_e = 0.05 as a noisy rejector sees it.
    seen = 1 / (1 + np.exp(-(np.log(doubt / (1 - doubt)) + rng.normal(0, 1, len(t)))))
    return Stream(t, seen - 0.1 - 0.05, rng.random(len(t)) > doubt, rng.random(len(t)) < 0.9)


def run(s: Stream, **options: object) -> NDArray[np.bool_]:
    """What a limiter sends of a stream."""
    now = [0.0]
    limiter = Limiter(LIMIT, clock=lambda: now[0], **options)  # type: ignore[arg-type]
    sent = np.zeros(len(s.time), dtype=bool)
    for i, (t, score) in enumerate(zip(s.time.tolist(), s.score.tolist(), strict=True)):
        now[0] = t
        sent[i] = limiter.allow(score).granted
    return sent


def optimum(s: Stream) -> NDArray[np.bool_]:
    """The choice of highest total score that keeps every window, by linear programming.

    In the running totals y of what is sent, each window says ``y_i - y_before <= cap`` and each request
    ``0 <= y_i - y_{i-1} <= 1``: differences of two, so the solution is whole.
    """
    worth = np.flatnonzero(s.score >= 0)
    t, n = s.time[worth], len(worth)
    before = np.searchsorted(t, t - HOUR, side="right")
    rows = np.arange(n)
    one = np.ones(n)

    def difference(first: NDArray[np.intp], second: NDArray[np.intp]) -> coo_array:
        columns = np.concatenate([first, second])
        return coo_array((np.concatenate([one, -one]), (np.concatenate([rows, rows]), columns)), shape=(n, n + 1))

    window, step = difference(rows + 1, before), difference(rows + 1, rows)
    most = np.concatenate([np.full(n, float(LIMIT.count or 0)), one, 0 * one])
    gain = np.zeros(n + 1)
    gain[1:] += s.score[worth]
    gain[:-1] -= s.score[worth]
    bounds = [(0, 0)] + [(0, None)] * n
    result = linprog(-gain, vstack([window, step, -step]), most, bounds=bounds, method="highs")
    sent = np.zeros(len(s.time), dtype=bool)
    sent[worth] = np.diff(result.x) > 0.5
    return sent


POLICIES: dict[str, Callable[[Stream], NDArray[np.bool_]]] = {
    "first come": lambda s: run(s, pacing=False, min_score=0.0),
    "pacing": lambda s: run(s, min_score=0.0),
    "optimum": optimum,
}


def accuracy_gain(s: Stream, sent: NDArray[np.bool_]) -> float:
    """Points of accuracy above all-local."""
    return 100 * float((s.server[sent].astype(int) - s.client[sent].astype(int)).sum()) / len(s.time)


def spread(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):6.2f} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}"


def compare(seeds: int, hours: float) -> None:
    print(f"accuracy above all-local in points, mean ± s.e. over {seeds} streams of {hours:g} h, cap {LIMIT}")
    names = [*POLICIES, "pacing - first come", "budget used by pacing"]
    print(f"{'stream':>14} | " + " | ".join(f"{name:>21}" for name in names))
    for shape in SHAPES:
        gains: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(seeds):
            s = stream(shape, hours, seed)
            for name, policy in POLICIES.items():
                sent = policy(s)
                gains[name].append(accuracy_gain(s, sent))
                if name == "pacing":
                    share = sent.sum() / (hours * (LIMIT.count or 0))
                    gains["budget used by pacing"].append(100 * float(share))
            gains["pacing - first come"].append(gains["pacing"][-1] - gains["first come"][-1])
        print(f"{shape:>14} | " + " | ".join(f"{spread(gains[name]):>21}" for name in names))


def throughput(seconds: float = 1.0) -> None:
    def bare(score: float) -> bool:
        return score > 0.5

    scores = np.random.default_rng(0).random(10_000).tolist()

    def per_call(function: Callable[[float], object]) -> float:
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for score in scores[:1000]:
                function(score)
            calls += 1000
        return spent / calls

    plenty = RateLimit(10**9, per="1h")
    share = RateLimit(fraction=0.2, window=1000)
    base = per_call(bare)
    print(f"\ncost of a call; a bare function call takes {base * 1e9:.0f} ns")
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            "in memory, all granted, first come": Limiter(plenty, pacing=False),
            "in memory, paced": Limiter(share),
            "with a path, all granted, first come": Limiter(plenty, pacing=False, path=Path(folder, "a")),
            "with a path, paced, 20% of 1000": Limiter(share, path=Path(folder, "b")),
            "with a path, full window": Limiter(RateLimit(1, per="1d"), path=Path(folder, "c")),
        }
        for name, limiter in rows.items():
            cost = per_call(limiter.allow)
            print(f"{name:>38}: {1 / cost:9,.0f} calls/s, {cost / base:6.0f} bare calls")
            limiter.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="streams of each shape")
    parser.add_argument("--hours", type=float, default=6.0, help="length of a stream")
    options = parser.parse_args()
    compare(options.seeds, options.hours)
    throughput()


if __name__ == "__main__":
    main()
