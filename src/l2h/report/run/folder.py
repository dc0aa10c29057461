"""The pictures and the page of a run folder: ``plots/*.png`` and ``report.html``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from l2h.experiments.runs import PLOTS
from l2h.files import write_atomically
from l2h.report.common.figure import png
from l2h.report.run.history import plot_sync
from l2h.report.run.page import write_page
from l2h.report.run.plots import save_plots

if TYPE_CHECKING:
    from l2h.experiments.evaluating import Evaluations


def write_run_page(evaluations: Evaluations, folder: Path) -> Path:
    """Write the plots and the page of a run's first evaluation into a folder and return the path of the page."""
    report, dataset, history = evaluations.results[0].report, evaluations.dataset, evaluations.history
    images = dataset.X_test if dataset.X_test.ndim == 4 else None
    seed = report.seed or 0
    steps = ["`l2h train --data DATA --client YOUR.onnx --server lenet5 --out runs/mine` trains around your own client"]
    if report.heads:
        steps = [f"`l2h evaluate {folder} --c-e 0.05 --c-e 0.2` prices it differently, with no new training", *steps]
    save_plots(report, folder / PLOTS, history=history, images=images, seed=seed)
    page = write_page(
        report,
        folder,
        title=f"Learning to help on {dataset.name}",
        history=history,
        images=images,
        settings=evaluations.training,
        next_steps=steps,
        seed=seed,
    )
    syncs = [spec.sync for spec in evaluations.specs]
    if history and len(set(syncs)) > 1:
        write_atomically(folder / PLOTS / "sync.png", png(plot_sync(history, syncs)))
    return page
