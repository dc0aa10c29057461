"""Simulate a year in the field with shift, and measure what closing the loop is worth.

    python benchmarks/year.py --out results/year [--seeds 5] [--inputs 12000] [--jobs 2]

A system on scikit-learn's digits is trained, calibrated and exported once per seed. Then come twelve months. From
month 4 on the three classes that the client is worst at are six times as frequent, from month 7 on the images are
blurred as well, and from month 10 on the server also draws 30% of its answers at random. The models stay. What is
measured is the risk: the price of asking (0.1), where that was paid, and 1 for a wrong answer, on average.

without     the bundle as it was exported
loop        the real thing: an edge client that audits 1% of what it keeps, true labels for 30% of the pairs, and every
            third of a month `recalibrate` on the pairs of the bundle in service, and `edge.reload` where it is better
no labels   the same, without any label
oracle      scale and shift of every head, fitted before each month to the true labels of 20,000 other samples of that
            month: what recalibrating can do with all labels and without delay

Inputs are drawn with replacement from samples that nothing was trained on, a little noise added to each. The risk of
the loops includes what their audits cost. Writes year.csv, year.json (every seed) and year.png; takes about 40 s of one
core per seed. `--rows results/year/year.json` prints and draws again what was measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression

import l2h
from l2h.audits import AuditLog
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.files import write_atomically
from l2h.metrics import fit_platt, spread
from l2h.recalibration import RecalibrationError, recalibrate
from l2h.report.common.axes import titled
from l2h.report.common.colours import CLIENT, INK, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, png

COSTS = l2h.Costs(c_e=0.1)
MONTHS, PARTS, PLENTY = 12, 3, 20_000
#: The first month with each shift.
MIX, BLUR, WORSE = 4, 7, 10
AUDIT, LABELLED, OFTEN, SOFT, CHANCE = 0.01, 0.3, 6.0, 0.6, 0.3
LOOKS = {"without": (CLIENT, "--"), "no labels": (SERVER, "-."), "loop": (SYSTEM, "-"), "oracle": (INK, ":")}
YEAR = range(1, MONTHS + 1)
PHASES = {
    "year": YEAR,
    "mix": range(MIX, BLUR),
    "blur": range(BLUR, WORSE),
    "worse server": range(WORSE, MONTHS + 1),
}
Array = np.ndarray[Any, Any]
Risk = dict[str, list[float]]


@dataclass(frozen=True)
class Field:
    """What the year's inputs are drawn from, and the server as it is in a month."""

    X: Array
    y: Array
    hard: Array  # classes
    server: ServerBundle
    seed: int

    def draw(self, month: int, n: int, part: int) -> tuple[Array, Array]:
        """Return inputs of a month and their true labels."""
        rng = np.random.default_rng((self.seed, month, part))
        weight = np.where(np.isin(self.y, self.hard) & (month >= MIX), OFTEN, 1.0)
        rows = rng.choice(len(self.y), n, p=weight / weight.sum())
        X = self.X[rows] + rng.normal(0, 8, (n, *self.X.shape[1:]))
        X = gaussian_filter(X, (0, 0, SOFT, SOFT)) if month >= BLUR else X
        return np.clip(X, 0, 255).round().astype(np.uint8), self.y[rows]

    def answers(self, X: Array, month: int) -> Array:
        """Return the server's labels; those that are random depend on the input alone."""
        label = self.server.run(X).argmax(axis=1)
        if month < WORSE:
            return label
        rng = np.random.default_rng(self.seed)
        weights = rng.integers(1, 2**31, X[0].size)
        number = (X.reshape(len(X), -1).astype(np.int64) @ weights) % 1_000_003
        return np.where(number % 100 < 100 * CHANCE, number % 10, label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=12_000, help="in a month")
    parser.add_argument("--rows", type=Path, help="a year.json: print and draw it again, simulate nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    if arguments.rows is not None:
        report(json.loads(arguments.rows.read_text()), arguments.out)
        return
    with ProcessPoolExecutor(arguments.jobs) as pool:
        by_seed = list(pool.map(live_once, range(arguments.seeds), [arguments.inputs] * arguments.seeds))
    report(by_seed, arguments.out)


def live_once(seed: int, inputs: int) -> dict[str, Any]:
    """Return what comes of a seed, and say so."""
    logging.getLogger("l2h").setLevel(logging.ERROR)  # drift is what this is about
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = live_through(Path(folder), seed, inputs)
    print(f"seed {seed}: {time.process_time() - begun:.0f} s", flush=True)
    return found


def make_field(folder: Path, seed: int) -> Field:
    """Train a system, export it to a folder, and return the field around it."""
    data = l2h.load_dataset("digits", seed=seed)
    X, y = np.concatenate([data.X_train, data.X_test]), np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(seed).permutation(len(y))
    old, fit, cal, rest = np.split(order, [150, 850, 1150])
    flat = X.reshape(len(X), -1)
    client = LogisticRegression(C=1e-6, max_iter=300).fit(flat[old], y[old])
    stage = l2h.StageSettings(epochs=10, batch=32, lr=3e-3)
    settings = l2h.Settings(server=stage, rejector=stage, folds=2, copies=1, device="cpu", seed=seed, threads=1)
    small = {"width": 1, "hidden": 8}
    system = l2h.HelpSystem(client, "lenet5", settings=settings, dataset="digits", rejector_options=small)
    system.fit(X[fit], y[fit]).calibrate(X[cal], y[cal])
    system.export(folder, costs=COSTS)
    wrong = client.predict(flat[cal]) != y[cal]
    hard = np.argsort([-wrong[y[cal] == k].mean() for k in range(10)])[:3]
    return Field(X[rest], y[rest], hard, ServerBundle(folder), seed)


def live_through(folder: Path, seed: int, inputs: int) -> dict[str, Any]:
    """Return the risk of every month, by who lives through it."""
    field = make_field(folder / "bundle", seed)
    device = DeviceBundle(folder / "bundle")
    (platt,) = np.array(device.manifest.rejector.platt)
    risk: dict[str, list[float]] = {name: [] for name in LOOKS}
    for month in YEAR:
        for name in ("without", "oracle"):
            used = platt if name == "without" else best_platt(field, device, month)
            parts = [fixed_losses(field, device, used, month, inputs // PARTS, part) for part in range(PARTS)]
            risk[name].append(float(np.mean(parts)))
    taken = {}
    for name, labelled in (("loop", LABELLED), ("no labels", 0.0)):
        risk[name], taken[name] = close_the_loop(field, folder, inputs, labelled, name)
    return {"risk": risk, "taken": taken}


def best_platt(field: Field, device: DeviceBundle, month: int) -> Array:
    """Return scale and shift of both heads by plenty of labels of a month; other samples than its own."""
    X, y = field.draw(month, PLENTY, PARTS)
    label, judgement = device.judge(X)
    right = [label == y, field.answers(X, month) == y]
    return np.array([fit_platt(judgement.scores[:, j], right[j]) for j in (0, 1)])


def fixed_losses(field: Field, device: DeviceBundle, platt: Array, month: int, n: int, part: int) -> Array:
    """Return what the inputs of a part of a month cost where these scales and shifts decide."""
    X, y = field.draw(month, n, part)
    label, judgement = device.judge(X)
    remote = type(judgement).from_heads(judgement.scores, platt).remote(COSTS)
    return np.where(remote, COSTS.c_e + (field.answers(X, month) != y), label != y)


def close_the_loop(
    field: Field, folder: Path, inputs: int, labelled: float, name: str
) -> tuple[list[float], list[str]]:
    """Live through the year with an edge client that audits, is recalibrated and reloads."""
    audits, now = folder / f"audits of {name}", [1]
    rng, risk, taken = np.random.default_rng(field.seed), [], []
    with l2h.EdgeClient(
        folder / "bundle",
        lambda X: field.answers(X, now[0]),
        deadline=60.0,
        max_batch=4096,
        audit=AUDIT,
        audits=AuditLog(audits, seed=field.seed),
    ) as edge:
        for month in YEAR:
            now[0], losses = month, []
            for part in range(PARTS):
                X, y = field.draw(month, inputs // PARTS, part)
                for rows in np.array_split(np.arange(len(y)), 20):
                    answers = edge.predict(X[rows])
                    losses.append(answers.cost + (answers.label != y[rows]))
                    for i in np.flatnonzero((answers.id != "") & (rng.random(len(rows)) < labelled)):
                        edge.feedback(answers.id[i], y[rows[i]])
                new = folder / f"{name} {month}.{part}"
                try:
                    recalibrate(edge.bundle.folder, audits).write(new)
                except RecalibrationError:
                    continue
                edge.reload(new)
                taken.append(f"{month}.{part + 1}")
            risk.append(float(np.mean(np.concatenate(losses))))
    shutil.rmtree(audits)
    return risk, taken


def closed(risks: list[Risk], name: str, months: range) -> float:
    """Return which part of the gap between no loop and the oracle is closed, by the means over seeds and months."""
    without, oracle, own = (mean_risk(risks, who, months) for who in ("without", "oracle", name))
    return (without - own) / (without - oracle)


def mean_risk(risks: list[Risk], name: str, months: range) -> float:
    """Return the mean risk over seeds and months."""
    return float(np.mean([[risk[name][m - 1] for m in months] for risk in risks]))


def report(by_seed: list[dict[str, Any]], out: Path) -> None:
    """Print, plot and write what came of it."""
    risks = [each["risk"] for each in by_seed]
    rows = []
    for month in YEAR:
        row: dict[str, Any] = {"month": month}
        for name in LOOKS:
            found = spread([risk[name][month - 1] for risk in risks])
            gap = spread([risk[name][month - 1] - risk["oracle"][month - 1] for risk in risks])
            row |= {name: found.mean, f"{name} sem": found.sem, f"{name} gap": gap.mean, f"{name} gap sem": gap.sem}
        rows.append(row)
        print(f"month {month:>2}  " + "  ".join(f"{name} {row[name]:.4f}" for name in LOOKS))
    for seed, risk in enumerate(risks):
        year = "  ".join(f"{name} {mean_risk([risk], name, YEAR):.4f}" for name in LOOKS)
        print(f"seed {seed}: {year}; reloads {by_seed[seed]['taken']}")
    for part, months in PHASES.items():
        said = []
        for name in ("loop", "no labels"):
            others = [closed(risks[:k] + risks[k + 1 :], name, months) for k in range(len(risks)) if len(risks) > 1]
            span = f" ({min(others):.0%} to {max(others):.0%} without any one seed)" if others else ""
            said.append(f"{name} closes {closed(risks, name, months):.0%}{span}")
        gap = mean_risk(risks, "without", months) - mean_risk(risks, "oracle", months)
        print(f"{part}: gap {gap:.4f}, {', '.join(said)}")
    out.mkdir(parents=True, exist_ok=True)
    with (out / "year.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_atomically(out / "year.json", (json.dumps(by_seed, indent=1) + "\n").encode())
    write_atomically(out / "year.png", png(plot(rows, len(by_seed))))


def plot(rows: list[dict[str, Any]], seeds: int) -> Any:
    """Return the figure: the risk of every month, and how far it is above the oracle's."""
    figure, (left, right) = blank(10.4, 4.4, 1, 2)
    months = [row["month"] for row in rows]
    for name, (colour, style) in LOOKS.items():
        left.plot(months, [row[name] for row in rows], style, color=colour, label=name, linewidth=1.8)
        if name != "oracle":
            mean = np.array([row[f"{name} gap"] for row in rows])
            sem = np.array([row[f"{name} gap sem"] or 0.0 for row in rows])
            right.plot(months, mean, style, color=colour, linewidth=1.8)
            right.fill_between(months, mean - sem, mean + sem, color=colour, alpha=0.15, linewidth=0)
    right.axhline(0.0, color=INK, linewidth=0.8)
    for axes in (left, right):
        axes.margins(y=0.12)
        axes.set_xticks(months)
        for month, text in ((MIX, "class mix"), (BLUR, "+ blur"), (WORSE, "+ worse server")):
            axes.axvline(month - 0.5, color=INK, linewidth=0.6, alpha=0.5)
            place = ("data", "axes fraction")
            axes.annotate(text, (month - 0.4, 0.98), xycoords=place, va="top", fontsize=8.5, color=INK)
    titled(left, f"A year in the field, {seeds} seeds", "month", "risk")
    titled(right, "Above the oracle, ± s.e.", "month", "risk less the oracle's")
    legend_below(figure, *left.get_legend_handles_labels(), columns=4)
    return figure


if __name__ == "__main__":
    main()
