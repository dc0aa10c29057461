"""Time a comparison of 16 seeds on Ray with 1, 2 and 4 workers, and what a task costs beside its work.

    OMP_NUM_THREADS=1 python benchmarks/ray_tasks.py --out results/ray

Ray runs on this machine. A worker is a process with one thread, started and warm before the clock runs. Ideal is the
time of one worker divided by the workers, or by the cores where these are fewer. Then come the costs that decide how
many workers one command can keep busy: what the command itself computes per task (submitting, waiting, unpacking,
writing the files) without what it computes while it waits, what an empty task takes from end to end, and the bytes of a
seed that stay in the object store for its methods. From these follows, on paper, what bounds 1,000 workers. Writes
ray_tasks.json. Needs the extra ray.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from l2h.experiments.clusters import ClusterWork, RayCluster, ray_cluster
from l2h.experiments.compare.comparing import Comparison
from l2h.experiments.compare.distributed import method_groups, prepare_task, run_seeds_on
from l2h.experiments.plan import digits_plan
from l2h.files import write_json
from l2h.settings import Settings

METHODS = (
    *("all-local", "confidence", "oracle"),
    *("ova-l2d", "two-stage-confidence", "shifted-separate", "priced-attached"),
)
#: Bytes per second of a network between nodes, assumed: 10 Gbit/s.
NETWORK = 1.25e9
MANY, IDLE = 1000, 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=int, default=6, help="of the server and of each rejector")
    parser.add_argument("--tasks", type=int, default=1000, help="empty ones, whose time is measured")
    parser.add_argument("--out", type=Path, help="folder of ray_tasks.json (default: print only)")
    arguments = parser.parse_args()
    comparison = short_comparison(arguments.seeds, arguments.epochs)
    groups = len(method_groups(METHODS))
    print(f"{arguments.seeds} seeds, 1 + {groups} tasks each, {len(os.sched_getaffinity(0))} cores")
    rows = [with_workers(count, lambda cluster: timed_run(cluster, comparison)) for count in arguments.workers]
    cores = len(os.sched_getaffinity(0))
    print(f"{'workers':>8}{'seconds':>9}{'ideal':>8}{'of ideal':>10}")
    for count, row in zip(arguments.workers, rows, strict=True):
        row |= {"workers": count, "ideal": rows[0]["seconds"] * arguments.workers[0] / min(count, cores)}
        share = row["ideal"] / row["seconds"]
        print(f"{count:8}{row['seconds']:9.1f}{row['ideal']:8.1f}{share:10.2f}")
    costs = with_workers(2, lambda cluster: task_costs(cluster, comparison, arguments.tasks))
    costs["work_s"] = rows[0]["seconds"] * arguments.workers[0] / rows[0]["tasks"]
    last = rows[-1]
    costs["driver_ms"] = (1000 * last["driver_s"] - costs["waiting_ms_per_s"] * last["seconds"]) / last["tasks"]
    report_costs(costs, groups)
    if arguments.out:
        about = {"seeds": arguments.seeds, "cores": cores, "methods": list(METHODS), "epochs": arguments.epochs}
        write_json(arguments.out / "ray_tasks.json", about | {"runs": rows, "costs": costs, "network": NETWORK})


def short_comparison(seeds: int, epochs: int) -> Comparison:
    plan = digits_plan(c_1=(1.0, 1.25), c_e=(0.05, 0.1, 0.15, 0.25))
    assert plan.settings.server is not None
    assert plan.settings.rejector is not None
    stages = {name: replace(getattr(plan.settings, name), epochs=epochs) for name in ("server", "rejector")}
    plan = replace(plan, settings=replace(plan.settings, folds=2, copies=1, device="cpu", **stages))
    return Comparison(plan, tuple(range(seeds)), None, METHODS)


def with_workers(count: int, measure: Callable[[RayCluster], dict[str, Any]]) -> dict[str, Any]:
    """Measure on a Ray of this machine with so many workers, all of them started."""
    ray.init(address="local", num_cpus=count, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        with ray_cluster("ray") as cluster:
            warm = [ClusterWork(k, {"warm": partial(warm_up, 2.0)}) for k in range(2 * count)]
            list(cluster.run(warm, cluster.request(Settings(device="cpu"))))
            return measure(cluster)
    finally:
        ray.shutdown()


def warm_up(seconds: float) -> None:
    """Hold a worker, which has imported this file and so all that trainings need, until all of them are taken."""
    time.sleep(seconds)


def timed_run(cluster: RayCluster, comparison: Comparison) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        files = {seed: Path(folder) / f"seed-{seed}.npz" for seed in comparison.seeds}
        seconds, busy = timed(lambda: run_seeds_on(cluster, comparison, files, lambda seed, what: None))
        written = sum(path.stat().st_size for path in files.values())
    tasks = len(comparison.seeds) * (1 + len(method_groups(METHODS)))
    return {
        "seconds": seconds,
        "tasks": tasks,
        "driver_s": busy,
        "bytes_per_seed": written / len(files),
    }


def task_costs(cluster: RayCluster, comparison: Comparison, count: int) -> dict[str, Any]:
    """Return what waiting and empty tasks take, and what a prepared seed weighs and costs to fetch."""
    request = cluster.request(comparison.plan.settings)
    _, waiting = timed(lambda: list(cluster.run([ClusterWork(0, {"wait": partial(warm_up, IDLE)})], request)))
    empty, driver = timed(lambda: list(cluster.run([ClusterWork(0, dict.fromkeys(range(count), nothing))], request)))
    prepared, _ = prepare_task(comparison.on(request), 0)
    reference = ray.put(prepared)
    put, _ = timed(lambda: ray.put(prepared))
    fetch, _ = timed(lambda: ray.get(reference))
    return {
        "waiting_ms_per_s": 1000 * waiting / IDLE,
        "empty_ms": 1000 * empty / count,
        "empty_driver_ms": 1000 * driver / count,
        "prepared_bytes": len(ray.cloudpickle.dumps(prepared)),
        "put_ms": 1000 * put,
        "get_ms": 1000 * fetch,
    }


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that something takes, and those that this process computes meanwhile."""
    begun, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - busy


def nothing() -> None:
    """Do no work."""


def report_costs(costs: dict[str, Any], groups: int) -> None:
    """Print the costs of a task, and what they mean for 1,000 workers."""
    size, work, own, waiting = (costs[name] for name in ("prepared_bytes", "work_s", "driver_ms", "waiting_ms_per_s"))
    print(f"an empty task: {costs['empty_ms']:.2f} ms end to end, {costs['empty_driver_ms']:.2f} ms of the command")
    print(
        f"a task of this comparison: {work:.2f} s of work, {own:.2f} ms of the command, and {waiting:.1f} ms per second"
    )
    print(f"a prepared seed: {size / 1e6:.1f} MB, put in {costs['put_ms']:.0f} ms, fetched in {costs['get_ms']:.0f} ms")
    rate = (1000 - waiting) / own
    fetched = size / work * groups / (1 + groups)
    print(
        f"\non paper: the command takes {rate:.0f} tasks a second and keeps {rate * work:,.0f} workers busy with these,"
    )
    print(
        f"{MANY:,} with tasks of {MANY / rate:.1f} s and more. A node with one worker fetches {fetched / 1e6:.2f} MB of"
    )
    print(f"prepared seeds per second, {100 * fetched / NETWORK:.3f}% of {8 * NETWORK / 1e9:.0f} Gbit/s.")


if __name__ == "__main__":
    main()
