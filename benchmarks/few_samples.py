"""How large a rejector's batches may be where samples are few: risks on validation samples, digits as a table.

    OMP_NUM_THREADS=1 python benchmarks/few_samples.py --out results/few-samples.csv     # 4 minutes on one core

A tree that was fitted to 100 digits is helped by a forest that was fitted to 500. The rejector learns from up to 797
others, in the default's 40 epochs. The last 500 judge it at the eight usual prices. Each seed divides the digits anew.
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

import l2h
from l2h.metrics import spread
from l2h.settings import SEPARABLE_REJECTOR

COSTS = [l2h.Costs(c_1=c_1, c_e=c_e) for c_1 in (1.0, 1.25) for c_e in (0.05, 0.1, 0.15, 0.25)]
BATCHES: tuple[int | None, ...] = (8, 16, 32, 64, 128, 256, None)  # None: what the samples suggest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    given, labels = load_digits(return_X_y=True)
    risks: dict[tuple[int, int | None], list[float]] = {(n, b): [] for n in (200, 400, 797) for b in BATCHES}
    trivial: dict[str, list[float]] = {"all_local": [], "all_remote": []}
    for seed in range(arguments.seeds):
        order = np.random.default_rng(seed).permutation(len(labels))
        X, y = given[order].astype(np.float32), labels[order]
        tree = DecisionTreeClassifier(max_depth=6, random_state=seed).fit(X[:100], y[:100])
        forest = RandomForestClassifier(50, random_state=seed).fit(X[:500], y[:500])
        for (n, batch), values in risks.items():
            settings = l2h.Settings(seed=seed, threads=1, rejector=replace(SEPARABLE_REJECTOR, batch=batch))
            system = l2h.HelpSystem(client=tree, server=forest, settings=settings)
            system.fit(X[500 : 500 + n], y[500 : 500 + n], progress=False)
            found = [system.evaluate(X[-500:], y[-500:], costs=costs).risk for costs in COSTS]
            values.append(float(np.mean([risk.system for risk in found])))
            print(f"seed {seed}, {n} samples, batch {batch or 'default'}: {values[-1]:.4f}", flush=True)
        for rule, ruled in trivial.items():
            ruled.append(float(np.mean([getattr(risk, rule) for risk in found])))
    with arguments.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("samples", "batch", "seeds", "risk", "sem"))
        rows = [(n, batch or "default", values) for (n, batch), values in risks.items()]
        for n, way, values in [*rows, *(("", rule, values) for rule, values in trivial.items())]:
            one = spread(values)
            writer.writerow((n, way, one.n, round(one.mean, 5), round(one.sem or 0.0, 5)))


main()
