"""Does a slower link hurt? Rejector loss for several sync intervals, over finished runs of several seeds.

    l2h train --recipe paper --loss shifted --sync 1 --sync 100 --sync 1000 --sync epoch --seed 0 ... --out runs/ia-0
    python benchmarks/links.py runs/ia-0 runs/ia-1 runs/ia-2 --out results/links-digits

Writes links.csv (final loss of each link's rejector on the calibration samples against the final server, mean and
standard error over seeds, and its difference to S = 1 seed by seed) and links.png (training loss against the epoch).
The training loss alone does not compare: S = 1 meets a server that was just updated on the very batch.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

import l2h
from l2h.files import write_atomically
from l2h.losses import rejector_loss
from l2h.metrics import spread
from l2h.report.common.axes import titled
from l2h.report.common.colours import CLIENT, INK, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, png

COLOURS = (INK, CLIENT, SERVER, SYSTEM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    systems = [l2h.load(run) for run in arguments.run]
    links = [str(spec.sync) for spec in systems[0].specs]
    final = np.array([[final_loss(system, i) for i in range(len(links))] for system in systems])
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "links.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sync", "seeds", "final_loss_mean", "final_loss_sem", "less_s1_mean", "less_s1_sem"])
        for i, link in enumerate(links):
            value, gap = spread(final[:, i].tolist()), spread((final[:, i] - final[:, 0]).tolist())
            print(f"S = {link:<6} final loss {value}, less that of S = {links[0]}: {gap}")
            figures = (value.mean, value.sem, gap.mean, gap.sem)
            writer.writerow([link, len(systems), *(round(figure or 0.0, 5) for figure in figures)])
    write_atomically(arguments.out / "links.png", png(plot(arguments.run, links)))


def final_loss(system: l2h.HelpSystem, which: int) -> float:
    """Mean loss of a rejector on the calibration samples, the server as it ended."""
    held, spec = system.fitted.calibration.held_out, system.specs[which]
    assert held is not None
    assert spec.costs is not None
    return float(
        rejector_loss(
            torch.from_numpy(held.scores[which]).double(),
            torch.from_numpy(held.client_correct),
            torch.from_numpy(held.server_correct),
            spec.costs,
            spec.loss,  # type: ignore[arg-type]
        )
    )


def plot(folders: list[Path], links: list[str]) -> object:
    figure, (ax,) = blank(6.6, 4.2)
    curves = []
    for folder in folders:
        with (folder / "history.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("rejector_loss_0")]
        curves.append([[float(row[f"rejector_loss_{i}"]) for row in rows] for i in range(len(links))])
    values = np.array(curves)
    epochs = np.arange(1, values.shape[2] + 1)
    for i, link in enumerate(links):
        mean, low, high = values[:, i].mean(0), values[:, i].min(0), values[:, i].max(0)
        ax.plot(epochs, mean, color=COLOURS[i % 4], label=f"S = {link}", linewidth=1.7)
        ax.fill_between(epochs, low, high, color=COLOURS[i % 4], alpha=0.12, linewidth=0)
    titled(ax, f"Rejector loss while training ({len(folders)} seeds, range)", "epoch", "mean training loss")
    legend_below(figure, *ax.get_legend_handles_labels(), columns=4)
    return figure


if __name__ == "__main__":
    main()
