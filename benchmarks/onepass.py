"""Time one pass over all cells of the paper's trade-off figure and cost table, against a plain loop for each cell.

    python benchmarks/onepass.py --out results/paper/onepass

The recipe is `paper`: batch 16, AlexNet server, LeNet-5 rejectors, momentum SGD. Times are measured in one run, after a
warm-up, over some hundred steps. Writes onepass.png and onepass.csv, which has one row per number of rejectors:
milliseconds per step and peak memory. Prints what a step of the 54 cells costs in one pass and cell by cell, what it
costs with torch's own SGD for the server, and the floor: the time in which the memory can move what a step must read
and write of the server's weights, however it is computed. Without --out it prints only.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter
from torch import nn
from torch.nn import functional as F

from l2h.decision import RejectorSpec
from l2h.experiments.paper.grid import ASYNC, FULL
from l2h.files import write_atomically
from l2h.models import InputScale, build_scaled
from l2h.models.rejectors import SeparateRejector, client_view
from l2h.report.common.axes import Floats, floats, grid_lines, titled
from l2h.report.common.colours import INK, MUTED, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, png
from l2h.settings import PAPER_REJECTOR, PAPER_SERVER
from l2h.training import Context, RejectorBatch, pick_device
from l2h.training.alternating import AlternatingStage
from l2h.training.loop import make_optimizer, repeatable

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 16
#: What a step moves of each weight of the server, in bytes: it is read to answer the batch of the step, to judge the
#: batch before, and to pass gradients down; then weight and momentum are read and written.
BYTES_PER_WEIGHT = 4 * (1 + 1 + 1 + 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of onepass.png and onepass.csv (default: print only)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rejectors", type=int, nargs="+", default=[1, 2, 5, 10, 20, 54, 108, 200])
    parser.add_argument("--hidden", type=int, default=4096, help="of AlexNet; smaller to try the script out")
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    cells = [RejectorSpec("paper", costs) for costs in FULL.tradeoff]
    cells += [RejectorSpec("paper", costs, sync=sync) for costs in ASYNC for sync in FULL.syncs]
    with repeatable(FULL.published_settings(0, str(device)), device):
        measure(arguments, cells, device)


def measure(arguments: argparse.Namespace, cells: list[RejectorSpec], device: torch.device) -> None:
    """Both ways, one after the other, with the same precision and the same choice of kernels."""
    eager = eager_step(device, arguments.steps, arguments.hidden)
    print(f"plain eager loop, one cell: {eager:.3f} ms a step; {len(cells)} cells: {eager * len(cells):.1f} ms")
    lowest, rate = floor_ms(device, arguments.hidden)
    print(f"floor: {lowest:.3f} ms a step, at {rate:.2f} TB/s of memory, as measured here", flush=True)
    points = []
    for count in arguments.rejectors:
        # The cells over and over, with other weights: what a batch costs does not depend on the prices.
        specs = [RejectorSpec(c.loss, c.costs, seed=k, sync=c.sync) for k, c in enumerate((cells * 4)[:count])]
        ms, memory = pass_step(specs, device, arguments)
        points.append(
            {
                "rejectors": count,
                "ms": round(ms, 4),
                "memory_gib": round(memory, 3),
                "eager_ms_per_cell": round(eager, 4),
                "torch_sgd_ms": round(pass_step(specs, device, arguments, plain=True)[0], 4),
                "floor_ms": round(lowest, 4),
            }
        )
        print(points[-1], flush=True)
    at = next((p for p in points if p["rejectors"] == len(cells)), None)
    if at is not None:
        whole = 15 * 50_000 / BATCH * at["ms"] / 1e3
        ratio = eager * len(cells) / at["ms"]
        print(f"one pass for {len(cells)} cells: {at['ms']:.3f} ms a step, {ratio:.0f} times less;")
        least = 15 * 50_000 / BATCH * lowest / 1e3
        print(f"15 epochs of 50,000 samples: {whole:.0f} s, of which the memory needs {least:.0f} s")
    if arguments.out is None:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "onepass.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(points[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
    write_atomically(arguments.out / "onepass.png", png(plot_scaling(points, eager)))


def plot_scaling(points: list[dict[str, Any]], eager: float) -> Figure:
    """Draw time per step and peak memory against the number of rejectors trained at once, and one after another."""
    points = sorted(points, key=lambda point: point["rejectors"])
    count, ms, memory = (floats([p[name] for p in points]) for name in ("rejectors", "ms", "memory_gib"))
    figure, (left, right) = blank(9.6, 4.3, 1, 2)
    look: dict[str, Any] = {"color": SYSTEM, "linewidth": 1.9, "marker": "o", "markersize": 5}
    left.plot(count, ms, **look)
    right.plot(count, memory, **look)
    line: dict[str, Any] = {"color": MUTED, "linestyle": (0, (4, 1.8)), "linewidth": 1.5}
    left.plot(count, count * eager, **line, marker="" if len(count) > 1 else "_", markersize=16)
    _ratio(left, count, ms, eager)
    left.set_yscale("log")
    ticks = _ticks(count)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{n:g}" for n in ticks])
        ax.minorticks_off()
        grid_lines(ax)
        ax.margins(0.07)
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    top = np.nanmax(memory, initial=0.0)
    right.set_ylim(0, 1.12 * top or 1.0)
    titled(left, "Time per step", "rejectors", "milliseconds")
    titled(right, "Peak memory", "rejectors", "GiB")
    labels = ["all at once", f"one after another, {eager:.3g} ms each"]
    legend_below(figure, [legend_line(**look), legend_line(**line)], labels)
    return figure


def _ratio(ax: Axes, count: Floats, ms: Floats, eager: float) -> None:
    """How many times less the most rejectors take than one after another."""
    known = np.flatnonzero(np.isfinite(ms) & (ms > 0))
    if not known.size or count[known[-1]] < 2:
        return
    n, here = float(count[known[-1]]), float(ms[known[-1]])
    ratio = n * eager / here
    if ratio < 1.5:  # nothing between the two to point at
        return
    text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    ax.annotate("", (n, here), (n, n * eager), arrowprops={"arrowstyle": "<->", "color": MUTED, "linewidth": 0.9})
    look: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 10, "color": INK}
    ax.annotate(f"{text} times less", (n, np.sqrt(here * n * eager)), (-5, 0), textcoords="offset points", **look)


def _ticks(count: Floats) -> list[float]:
    """The numbers of rejectors, thinned where they would run into one another on a logarithmic axis."""
    kept: list[float] = []
    for n in sorted({float(n) for n in count}, reverse=True):
        if not kept or kept[-1] / n > 1.35:
            kept.append(n)
    return kept[::-1]


def data(device: torch.device, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    return x.to(device), y.to(device)


def floor_ms(device: torch.device, hidden: int) -> tuple[float, float]:
    """Milliseconds in which the memory moves what a step must, and the measured rate in TB/s."""
    weights = sum(parameter.numel() for parameter in server(hidden).parameters())
    a, b = torch.zeros(weights, device=device), torch.zeros(weights, device=device)
    times = []
    for _ in range(6):
        begun = clock(device)
        for _ in range(10):
            a.add_(b)  # reads both, writes one
        times.append((clock(device) - begun) / 10)
    rate = 12 * weights / min(times)
    return 1e3 * BYTES_PER_WEIGHT * weights / rate, rate / 1e12


def pass_step(
    specs: list[RejectorSpec], device: torch.device, arguments: argparse.Namespace, plain: bool = False
) -> tuple[float, float]:
    """Milliseconds a step of server and all rejectors together, and peak memory in GiB.

    ``plain`` gives the server torch's own optimizer.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    steps = arguments.steps
    x, y = data(device, steps * BATCH)
    net = server(arguments.hidden).to(device)
    view = client_view(torch.log_softmax(torch.randn(len(x), CLASSES, device=device), dim=-1))
    settings = FULL.published_settings(0, str(device))
    stage = AlternatingStage(
        "both",
        net,
        RejectorBatch([rejector() for _ in specs], device),
        specs,
        x,
        y,
        view,
        torch.rand(len(x), device=device) < 0.6,
        PAPER_SERVER,
        PAPER_REJECTOR,
        Context(settings, device),
    )
    if plain:
        stage.optimizer = make_optimizer(PAPER_SERVER, list(net.parameters()))
    stage.train_epoch(0, lambda: None)
    begun = clock(device)
    stage.train_epoch(1, lambda: None)
    ms = 1e3 * (clock(device) - begun) / steps
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    return ms, memory


def eager_step(device: torch.device, steps: int, hidden: int) -> float:
    """Milliseconds a step of Algorithm 1 for one cell, written plainly: no recording, no batch of rejectors."""
    x, y = data(device, steps * BATCH)
    client_right = torch.rand(len(x), device=device) < 0.6
    e, r = server(hidden).to(device), rejector().to(device)
    optimizers = [torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9) for net, lr in ((e, 1e-3), (r, 1e-4))]

    def step(rows: torch.Tensor) -> None:
        e.train()
        loss = F.cross_entropy(e(x[rows]), y[rows])
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        e.eval()
        with torch.no_grad():
            right = e(x[rows]).argmax(1) == y[rows]
        log_p = F.log_softmax(r(x[rows]), dim=1)
        weight = 1 - 0.25 - 1.25 + 1.25 * right.float()
        loss = -(weight * log_p[:, 1] + client_right[rows].float() * log_p[:, 0]).sum()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()

    batches = torch.arange(len(x), device=device).split(BATCH)
    for rows in batches[: max(5, steps // 10)]:
        step(rows)
    begun = clock(device)
    for rows in batches:
        step(rows)
    return 1e3 * (clock(device) - begun) / len(batches)


def server(hidden: int) -> nn.Module:
    return build_scaled("alexnet", SHAPE, CLASSES, InputScale.to_unit_range(SHAPE), hidden=hidden)


def rejector() -> nn.Module:
    return SeparateRejector(SHAPE, scale=InputScale.to_unit_range(SHAPE))


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
