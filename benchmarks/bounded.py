"""Measure accuracy against the bound on asking, over finished runs of several seeds.

    python benchmarks/bounded.py runs/seed-0 runs/seed-1 ... --out results/bounded-digits

Writes bounded.csv and bounded.png. The CSV file has one row per bound and rule: realised rate and accuracy, mean and
standard error over the runs. The rules are the threshold, the paper's stochastic rule, and asking at random. Each is
calibrated on the run's calibration samples and measured on its test set.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

import l2h
from l2h.experiments import runs
from l2h.files import write_atomically
from l2h.metrics import spread
from l2h.report.common.axes import percent_axis, titled
from l2h.report.common.colours import CLIENT, INK, SYSTEM
from l2h.report.common.figure import blank, legend_below, png

BOUNDS = [round(0.05 * k, 2) for k in range(21)]
LOOKS = {"threshold": (SYSTEM, "-"), "stochastic": (CLIENT, "--"), "random": (INK, ":")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--c-e", type=float, default=0.25, help="price at which the stochastic rule's rejector decides")
    parser.add_argument("--c-1", type=float, default=1.12, help="likewise")
    arguments = parser.parse_args()
    costs = l2h.Costs(c_e=arguments.c_e, c_1=arguments.c_1)
    by_run = [measure(run, costs) for run in arguments.run]
    rows = summarise(by_run)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "bounded.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_atomically(arguments.out / "bounded.png", png(plot(rows, len(by_run), by_run)))
    average = {rule: spread([np.mean([m["accuracy"] for m in r[rule]]) for r in by_run]) for rule in LOOKS}
    for rule, value in average.items():
        print(f"{rule:<11} mean accuracy over the bounds {value}")
    for better, worse in (("threshold", "stochastic"), ("stochastic", "random")):
        gap = spread(
            [np.mean([a["accuracy"] - b["accuracy"] for a, b in zip(r[better], r[worse], strict=True)]) for r in by_run]
        )
        print(f"{better} above {worse}: {gap}")
        for k, q in enumerate(BOUNDS):
            at = spread([r[better][k]["accuracy"] - r[worse][k]["accuracy"] for r in by_run])
            if at.mean < -(at.sem or 0.0):
                print(f"  below it at q = {q}: {at}")


def measure(run: Path, costs: l2h.Costs) -> dict[str, list[dict[str, float]]]:
    """Realised rate and accuracy of every rule at every bound; of random asking their expectation."""
    training = runs.read_config(run)["training"]
    seed = training["settings"]["seed"]
    data = l2h.load_dataset(training["data"], training["test"], seed=seed, limit=training["limit"])
    system = l2h.load(run)
    whole = system.evaluate(data.X_test, data.y_test, l2h.Costs(c_e=0.0))
    client, server = whole.client_label == whole.y, whole.server_label == whole.y
    judged, held = system.judge(data.X_test), system.fitted.held_out_judgement(0)
    free = l2h.Costs(c_e=0.0)
    out: dict[str, list[dict[str, float]]] = {rule: [] for rule in LOOKS}
    rng = np.random.default_rng(seed)
    for q in BOUNDS:
        sent = {
            "threshold": l2h.limits.threshold_for(held.saving(free), q).apply(judged.saving(free), rng),
            "stochastic": l2h.limits.stochastic(judged.remote(costs), float(held.remote(costs).mean()), q, rng),
        }
        for rule, remote in sent.items():
            out[rule].append({"rate": float(remote.mean()), "accuracy": float(np.where(remote, server, client).mean())})
        out["random"].append({"rate": q, "accuracy": float(q * server.mean() + (1 - q) * client.mean())})
    n, m = len(whole.y), len(held.scores)
    for q, found in zip(BOUNDS, out["threshold"], strict=True):
        # Binomial error of the rate on test, and of the quantile on calibration.
        error = np.sqrt(q * (1 - q) * (1 / n + 1 / m))
        if abs(found["rate"] - q) > 3 * error + 1e-9:
            print(f"{run}: threshold at q = {q} sends {found['rate']:.4f}")
    for q, found in zip(BOUNDS, out["stochastic"], strict=True):
        error = np.sqrt(q * (1 - q) / n + q * q / m)
        if abs(found["rate"] - q) > 3 * error + 1e-9:
            print(f"{run}: stochastic at q = {q} sends {found['rate']:.4f}")
    return out


def summarise(by_run: list[dict[str, list[dict[str, float]]]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for rule in LOOKS:
        for k, q in enumerate(BOUNDS):
            rate, accuracy = (spread([run[rule][k][name] for run in by_run]) for name in ("rate", "accuracy"))
            row: dict[str, object] = {"rule": rule, "bound": q, "runs": len(by_run)}
            for name, value in (("rate", rate), ("accuracy", accuracy)):
                row |= {f"{name}_mean": round(value.mean, 5), f"{name}_sem": round(value.sem or 0.0, 5)}
            rows.append(row)
    return rows


def plot(rows: list[dict[str, object]], n: int, by_run: list[dict[str, list[dict[str, float]]]]) -> object:
    figure, (left, right) = blank(9.6, 4.4, 1, 2)
    for rule, (colour, style) in LOOKS.items():
        mine = [row for row in rows if row["rule"] == rule]
        mean = np.array([row["accuracy_mean"] for row in mine], dtype=float)
        error = np.array([row["accuracy_sem"] for row in mine], dtype=float)
        left.plot(BOUNDS, mean, color=colour, linestyle=style, label=rule, linewidth=1.8)
        left.fill_between(BOUNDS, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
        if rule != "random":
            for run in by_run:
                right.plot(
                    BOUNDS, [m["rate"] - q for m, q in zip(run[rule], BOUNDS, strict=True)],
                    color=colour, linestyle=style, linewidth=0.9, alpha=0.8,
                )  # fmt: skip
    titled(left, f"Accuracy under a bound ({n} seeds, ± s.e.)", "bound on the share sent", "joint accuracy")
    titled(right, "Realised share less the bound, each seed", "bound on the share sent", "")
    right.axhline(0.0, color=INK, linewidth=0.8)
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        percent_axis(axis)
    legend_below(figure, *left.get_legend_handles_labels(), columns=3)
    return figure


if __name__ == "__main__":
    main()
