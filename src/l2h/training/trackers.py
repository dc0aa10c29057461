"""Trainings logged to other programs: TensorBoard and MLflow."""

import atexit
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from l2h.errors import MissingExtraError, SettingsError, first_line, missing_extra
from l2h.metrics import OutcomeReport
from l2h.settings import as_text, flat
from l2h.training.progress import Progress

log = logging.getLogger("l2h.training")
#: Columns of the history that are logged after every epoch, under the name of the stage.
_LOGGED = ("train_loss", "held_out_loss", "lr", "seconds")
#: Parts of ``metrics.json`` that are no measurements, or too many.
_NOT_LOGGED = ("schema", "seed", "reject_rate_per_class.", "costs.", "prices.")
#: The most letters of a parameter and the most of them at once that every version of MLflow takes.
_LONGEST, _AT_ONCE = 500, 100
_REACH = 10.0  # seconds in which an address must be reached before anything is trained


def _measured(row: Mapping[str, Any], stage: str) -> dict[str, float]:
    return {f"{stage}/{key}": row[key] for key in _LOGGED if row.get(key) is not None}


def _figures(report: OutcomeReport) -> dict[str, float]:
    """Return every number of ``metrics.json`` by its name there: ``test/risk.system``."""
    named = flat(report.as_dict())
    return {
        f"test/{name}": float(value)
        for name, value in named
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith(_NOT_LOGGED)
    }


class TensorBoardProgress(Progress):
    """Writes loss and learning rate of every epoch, and the figures of a report, to a TensorBoard log folder."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("TensorBoard logs need the package 'tensorboard'", "tensorboard") from error
        self._make_writer, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        if self._writer is None:  # not opened before: until a training begins its run folder must stay as it is
            self._writer = self._make_writer(self._folder)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        for name, value in _measured(row, stage).items():
            self._writer.add_scalar(name, value, int(row["epoch"]))

    def finish(self, stage: str) -> None:
        self._writer.flush()

    def evaluated(self, report: OutcomeReport, page: Path | None = None) -> None:
        self.start("", 0, 0, 0)
        for name, value in _figures(report).items():
            self._writer.add_scalar(name, value)
        self._writer.flush()


class MLflowProgress(Progress, AbstractContextManager["MLflowProgress"]):
    """Logs a training to MLflow: settings, loss and learning rate of every epoch, and the figures and page of a report.

    A run of MLflow begins with the training, and ends with the block, the program or the next training. Within
    ``mlflow.start_run()`` all is logged to that run. If MLflow fails while a training works, a warning says so and the
    training goes on without it.

    Args:
        where: a folder, which gets an SQLite file and the artefacts; or an address as MLflow takes it:
            ``http://host:5000``, ``sqlite:///mlflow.db``. Where None, what MLflow is set to (``MLFLOW_TRACKING_URI``).
        experiment: the experiment's name, made where there is none so called.
        run_name: the run's name; where None, MLflow makes one up.

    Raises:
        MissingExtraError: the extra ``mlflow`` is not installed; the message has the command.
        SettingsError: MLflow cannot be reached there.

    Example:
        >>> with l2h.training.MLflowProgress("mlflow", experiment="digits") as mlflow:  # doctest: +SKIP
        ...     system.fit(X, y, progress=[None, mlflow])
        ...     mlflow.evaluated(system.evaluate(X_test, y_test))
    """

    def __init__(
        self, where: str | Path | None = None, experiment: str = "l2h", *, run_name: str | None = None
    ) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise missing_extra("logs for MLflow need the package 'mlflow'", "mlflow") from error
        self._failures = (mlflow.MlflowException, OSError)
        self._run_name, self._values = run_name, dict[str, str]()
        self._client: Any = None
        self._run: str | None = None
        self._gone = False  # whether MLflow failed, and is asked no more
        self.where, artefacts = _address(where)
        active = mlflow.active_run() if where is None else None
        self._given = None if active is None else str(active.info.run_id)  # the user's own run, which is not ended
        try:
            if self.where is not None and self.where.startswith("http"):
                httpx.get(self.where, timeout=_REACH)  # MLflow itself would try for minutes
            self._client = mlflow.MlflowClient(self.where)
            found = None if self._given else self._client.get_experiment_by_name(experiment)
            self._experiment = found.experiment_id if found else None
            if found is None and self._given is None:
                self._experiment = self._client.create_experiment(experiment, artefacts)
        except Exception as error:  # of its many stores each has types of its own
            place = where or "its default address"
            raise SettingsError(f"MLflow cannot be used at {place}: {first_line(error)}") from error

    def begin(self, values: Mapping[str, Any]) -> None:
        self.close()
        self._values = {_name(name): as_text(value)[:_LONGEST] for name, value in flat(values)}

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        if self._run is None and not self._gone:
            with self._tried():
                self._open()

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        self._log(_measured(row, stage), int(row["epoch"]))

    def evaluated(self, report: OutcomeReport, page: Path | None = None) -> None:
        self.start("", 0, 0, 0)
        self._log(_figures(report), 0)
        if self._gone:
            return
        with self._tried(), tempfile.TemporaryDirectory() as folder:
            self._client.log_dict(self._run, report.as_dict(), "metrics.json")
            try:
                self._client.log_artifact(self._run, page or report.save(Path(folder) / "report.html"))
            except MissingExtraError as error:
                log.info("MLflow gets no page: %s", error)

    def close(self, status: str = "FINISHED") -> None:
        """End the run, if there is one that began here."""
        if self._run is not None and self._run != self._given and not self._gone:
            with self._tried(), redirect_stdout(sys.stderr):  # it prints the run's address, and stdout is for results
                self._client.set_terminated(self._run, status)
        self._run = None
        atexit.unregister(self.close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    def _open(self) -> None:
        from mlflow.entities import Param

        self._run = self._given or self._client.create_run(self._experiment, run_name=self._run_name).info.run_id
        atexit.register(self.close)
        given = [Param(name, value) for name, value in self._values.items()]
        for first in range(0, len(given), _AT_ONCE):
            self._client.log_batch(self._run, params=given[first : first + _AT_ONCE])

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        if not self._gone:
            now = time.time_ns() // 1_000_000
            with self._tried():
                metrics = [Metric(_name(name), value, now, step) for name, value in figures.items()]
                self._client.log_batch(self._run, metrics=metrics)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            self._gone = True
            log.warning("MLflow failed, and nothing more is logged there: %s", first_line(error))


def _address(where: str | Path | None) -> tuple[str | None, str | None]:
    """Return the address of MLflow's store, and that of the artefacts where it is a folder."""
    if where is None or "://" in str(where) or str(where) == "databricks":
        return None if where is None else str(where), None
    folder = Path(where).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"MLflow cannot be used at {where}: no folder can be made there") from error
    logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)  # it tells of every table that it makes
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _name(name: str) -> str:
    """Return a name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
