"""A finished run, opened: its system, and what it was trained on and for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs, cost_grid
from l2h.data import Dataset, load_dataset
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.experiments.plan import divide, plan_of
from l2h.system import HelpSystem, load


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        folder: the run folder.
        training: plain values of the plan it was trained by; empty for a system that was saved without one.
        system: as it was saved.
    """

    folder: Path
    training: dict[str, Any]
    system: HelpSystem

    def dataset(self, data: str | None = None, test: str | None = None) -> Dataset:
        """Load the data set named here, or the run's own.

        Raises:
            RunError: the run does not say what it was trained on.
        """
        training = self.training
        if data is None and "data" not in training:
            raise RunError(f"{self.folder} does not say what data it was trained on: give --data")
        return load_dataset(
            data or training["data"],
            test if data else training["test"],
            seed=training.get("settings", {}).get("seed", 0),
            limit=None if data else training["limit"],
        )

    def calibration_samples(self, data: str | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the training part of the data set named here, or the run's own calibration part."""
        dataset = self.dataset(data)
        if data is None:
            return divide(dataset, plan_of(self.training)).calibration
        return dataset.X_train, dataset.y_train

    def costs(self, c_e: float | None, c_1: float | None) -> Costs:
        """Return these prices; where one is None, the first that the run was trained for."""
        return Costs(
            c_e=self.training.get("c_e", [0.1])[0] if c_e is None else c_e,
            c_1=self.training.get("c_1", [1.0])[0] if c_1 is None else c_1,
        )

    def export_costs(self, c_e: float | None, c_1: float | None) -> Costs | None:
        """Return the prices to export for; None where none are given and the rejectors have their own."""
        if c_e is None and c_1 is None and self.system.specs[0].costs is not None:
            return None
        return self.costs(c_e, c_1)

    def cost_grid(self, c_e: list[float] | None, c_1: list[float] | None) -> list[Costs]:
        """Return the grid of these prices; where one list is empty, of those that the run was trained for."""
        return cost_grid(c_1 or self.training.get("c_1") or [1.0], c_e or self.training.get("c_e") or [0.1])


def open_run(folder: Path, server_run: Path | None = None) -> FinishedRun:
    """Open a finished run.

    Args:
        folder: the run folder.
        server_run: the run of a server that was trained by itself.

    Raises:
        RunError: there is no finished run, or it is damaged.
    """
    config = runs.read_config(folder)
    training, saved = config.get("training", {}), config.get("system") or {}
    # The run does not hold a TorchScript client or a fixed server itself: it names their files.
    files = {
        part: training[part]
        for part in ("client", "server")
        if saved.get(part, {}).get("kind") in ("given", "fixed") and Path(str(training.get(part, ""))).suffix
    }
    return FinishedRun(folder, training, load(folder, **files, server_run=server_run))
