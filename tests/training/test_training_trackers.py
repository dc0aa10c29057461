"""Trainings logged to MLflow and TensorBoard from Python, read back with their own readers."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
from clouds import X_TEST, Y_TEST, X, Y, make
from waiting import free_port

from l2h.errors import MissingExtraError, SettingsError
from l2h.training import MLflowProgress, Progress, TensorBoardProgress


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that MLflow has made its tables in, which takes a while; every test has an experiment of its own."""
    folder = tmp_path_factory.mktemp("mlflow") / "new" / "store"
    MLflowProgress(folder, "empty")
    return folder


def runs_of(folder: Path, experiment: str) -> tuple[mlflow.MlflowClient, list[Any]]:
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@pytest.mark.usefixtures("no_pictures")
def test_mlflow_holds_a_training_and_its_report(store: Path) -> None:
    with MLflowProgress(store, "clouds", run_name="first") as tracker:
        system = make(given={"dataset": "clouds"}).fit(X, Y, progress=tracker)
        report = system.evaluate(X_TEST, Y_TEST)
        tracker.evaluated(report)
        client, (run,) = runs_of(store, "clouds")
        assert run.info.status == "RUNNING"
    client, (run,) = runs_of(store, "clouds")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    params, metrics = run.data.params, run.data.metrics
    assert (params["dataset"], params["samples"], params["classes"]) == ("clouds", str(len(Y)), "3")
    assert (params["method"], params["settings.seed"]) == ("priced-attached", "1")
    assert system.fitted is not None
    for row in system.fitted.history:
        history = client.get_metric_history(run.info.run_id, f"{row['stage']}/train_loss")
        assert {point.step: point.value for point in history}[row["epoch"]] == row["train_loss"]
    assert metrics["test/risk.system"] == report.risk.system
    assert metrics["test/heads.client.ece"] == report.ece["client"]
    assert sorted(file.path for file in client.list_artifacts(run.info.run_id)) == ["metrics.json", "report.html"]
    kept = json.loads(Path(client.download_artifacts(run.info.run_id, "metrics.json")).read_text())
    assert kept == report.as_dict()


def test_each_training_is_a_run_and_one_that_fails_says_so(store: Path) -> None:
    class Failing(Progress):
        def finish(self, stage: str) -> None:
            raise RuntimeError("the disk is full")

    def train(tracker: MLflowProgress) -> None:
        with tracker:
            make().fit(X, Y, progress=tracker)
            make().fit(X, Y, progress=[tracker, Failing()])

    with pytest.raises(RuntimeError, match="disk"):
        train(MLflowProgress(store, "two"))
    _, runs = runs_of(store, "two")
    assert sorted(run.info.status for run in runs) == ["FAILED", "FINISHED"]


def test_within_a_run_of_the_user_all_is_logged_there(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    mine = mlflow.create_experiment("mine", (tmp_path / "artefacts").as_uri())
    with mlflow.start_run(experiment_id=mine) as own:
        with MLflowProgress() as tracker:
            make().fit(X, Y, progress=tracker)
        assert mlflow.get_run(own.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("mine", 1.0)
    (run,) = mlflow.search_runs([mine], output_format="list")
    assert run.info.run_id == own.info.run_id
    assert {"mine", "rejector/train_loss"} <= {*run.data.metrics}
    assert run.data.params["samples"] == str(len(Y))


def test_a_training_survives_the_loss_of_mlflow(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copy(store / "mlflow.db", tmp_path)

    class Breaking(Progress):
        def finish(self, stage: str) -> None:
            if stage == "server fold 1":
                with sqlite3.connect(tmp_path / "mlflow.db") as database:
                    database.execute("DROP TABLE metrics")

    with caplog.at_level(logging.WARNING, "l2h.training"), MLflowProgress(tmp_path) as tracker:
        system = make().fit(X, Y, progress=[tracker, Breaking()])
    assert system.fitted is not None
    told = [record.message for record in caplog.records if "MLflow" in record.message]
    assert len(told) == 1
    assert "nothing more is logged" in told[0]
    assert "\n" not in told[0]


def test_tensorboard_holds_the_figures_of_a_report(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoardProgress(tmp_path)
    system = make().fit(X, Y, progress=tracker)
    report = system.evaluate(X_TEST, Y_TEST)
    tracker.evaluated(report)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Scalars("test/risk.system")[0].value == pytest.approx(report.risk.system)
    assert "rejector/train_loss" in events.Tags()["scalars"]


@pytest.mark.parametrize("where", ["http://127.0.0.1:{port}", "{file}/below", "dance://floor"])
def test_what_cannot_be_reached_is_told_in_a_line_before_anything_is_trained(where: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match="MLflow cannot be used at") as refused:
        MLflowProgress(where.format(port=free_port(), file=file))
    assert "\n" not in str(refused.value)


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"pip install .*\[mlflow\]'$"):
        MLflowProgress("x")
