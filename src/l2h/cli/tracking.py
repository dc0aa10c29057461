"""The options by which a training is logged to TensorBoard and MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from l2h.cli.options import run_option

if TYPE_CHECKING:
    from l2h.training import Progress


@dataclass(frozen=True)
class TrackingOptions:
    """Where a training is logged to."""

    tensorboard: Annotated[bool, run_option("--tensorboard", help="Write TensorBoard logs into the run folder.")] = (
        False
    )
    mlflow: Annotated[
        str | None,
        run_option(
            "--mlflow",
            help="Log settings, losses, results and page to MLflow: a folder, or an address such as http://host:5000.",
        ),
    ] = None
    mlflow_experiment: Annotated[
        str | None, run_option("--mlflow-experiment", help="The experiment there. (default: l2h)")
    ] = None

    @contextmanager
    def trackers(self, run: Path) -> Iterator[list[Progress]]:
        """Give those that log the training whose run folder this is; the run in MLflow ends with the block."""
        from l2h.training import MLflowProgress, TensorBoardProgress

        if self.mlflow_experiment is not None and self.mlflow is None:
            raise typer.BadParameter("--mlflow-experiment goes with --mlflow", param_hint="--mlflow-experiment")
        with ExitStack() as stack:
            found: list[Progress] = [TensorBoardProgress(run / "tensorboard")] if self.tensorboard else []
            if self.mlflow is not None:
                mlflow = MLflowProgress(self.mlflow, self.mlflow_experiment or "l2h", run_name=run.absolute().name)
                found.append(stack.enter_context(mlflow))
            yield found
