"""The pictures and the page of a run folder: ``plots/*.png`` and ``report.html``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from l2h.data import Dataset
from l2h.experiments.runs import PLOTS
from l2h.files import write_atomically
from l2h.metrics import Report
from l2h.report.common.figure import png
from l2h.report.run.history import plot_sync
from l2h.report.run.page import write_page
from l2h.report.run.plots import save_plots


def write_run_page(
    report: Report,
    dataset: Dataset,
    folder: Path,
    history: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    syncs: Sequence[int | str] = (),
) -> Path:
    """Write the plots and the page of a report into a run folder and return the path of the page.

    Args:
        report: what was measured.
        dataset: what it was measured on; its test images are shown.
        folder: the run folder.
        history: the rows of the training.
        settings: plain values of the training, listed on the page.
        syncs: the link of each rejector; several get a plot of their own.
    """
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
        settings=settings,
        next_steps=steps,
        seed=seed,
    )
    if len(set(syncs)) > 1:
        write_atomically(folder / PLOTS / "sync.png", png(plot_sync(history, syncs)))
    return page
