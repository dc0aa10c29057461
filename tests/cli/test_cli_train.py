"""``l2h train``: the run folder, JSON for programs, TensorBoard, and clients of every kind of file."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import DIGITS, QUICK, Result, assert_same, assert_schema, assert_told, call, execute, files_of, one_line
from safetensors import safe_open

import l2h

STAGES = ["server fold 1", "server fold 2", "server", "rejector"]


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_run_folder_holds_all_that_is_promised(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "metrics.json", "history.csv", "checkpoints", "plots", "report.html"} <= names
    weights = list((folder / "checkpoints").glob("*.safetensors"))
    assert {"server.safetensors", "rejector.safetensors"} <= {path.name for path in weights}
    for path in weights:
        with safe_open(path, framework="numpy") as file:
            assert list(file.keys())
    pictures = list((folder / "plots").glob("*.png"))
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in pictures)
    assert not [name for name in files_of(folder) if name.endswith((".pkl", ".pickle", ".tmp"))]


def test_config_says_what_was_trained(trained: tuple[Path, Result]) -> None:
    config = json.loads((trained[0] / "config.json").read_text())
    assert config["schema"] == 1
    training = config["training"]
    assert (training["data"], training["client"], training["server"]) == ("digits", "tree", "lenet5")
    assert training["settings"]["server"]["epochs"] == 2
    assert training["settings"]["folds"] == 2
    assert training["rejector_options"] == {"width": 1}


def test_history_has_a_row_an_epoch_of_every_stage(trained: tuple[Path, Result]) -> None:
    rows = history(trained[0])
    assert list(dict.fromkeys(row["stage"] for row in rows)) == STAGES
    assert all(np.isfinite(float(row["train_loss"])) for row in rows)
    folds = [int(row["epoch"]) for row in rows if row["stage"] == "server fold 1"]
    assert folds == [1, 2]


def test_json_is_all_there_is_on_stdout_and_has_the_schema(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    reports = result.json()
    assert [report["costs"] for report in reports] == [{"c_e": c_e, "c_1": 1.25} for c_e in (0.1, 0.3)]
    for report in reports:
        assert_schema(report)
    assert json.loads((folder / "metrics.json").read_text()).items() >= reports[0].items()


def test_figures_are_fractions_that_agree_with_each_other(trained: tuple[Path, Result]) -> None:
    for report in trained[1].json():
        costs, risk, accuracy = report["costs"], report["risk"], report["accuracy"]
        assert risk["all_local"] == pytest.approx(1 - accuracy["client"])
        assert risk["all_remote"] == pytest.approx(costs["c_e"] + costs["c_1"] * (1 - accuracy["server"]))
        assert 0 <= risk["oracle"] <= min(risk[name] for name in ("system", "all_local", "all_remote"))
        local, remote = report["contrastive"]["local"], report["contrastive"]["remote"]
        assert local["ratio"] + remote["ratio"] == pytest.approx(1)
        assert remote["ratio"] == report["reject_rate"]
        kept = local["ratio"] * (local["client"] or 0)
        assert accuracy["system"] == pytest.approx(kept + remote["ratio"] * (remote["server"] or 0))


def test_the_log_is_plain_lines_on_stderr_where_there_is_no_terminal(trained: tuple[Path, Result]) -> None:
    log = trained[1].err
    assert all(f"{stage}: " in log for stage in STAGES)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", log), "no control characters but line ends"


def test_tensorboard_has_the_losses_of_the_history(trained: tuple[Path, Result]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = trained
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    points = {
        (re.sub(r"\W", "_", tag), point.step): point.value
        for tag in events.Tags()["scalars"]
        for point in events.Scalars(tag)
    }
    compared = 0
    for row in history(folder):
        for column in ("train_loss", "held_out_loss", "lr"):
            if row[column]:
                key = re.sub(r"\W", "_", f"{row['stage']}/{column}"), int(row["epoch"])
                # TensorBoard keeps float32.
                assert points[key] == pytest.approx(float(row[column]), rel=1e-6)
                compared += 1
    assert compared > len(STAGES)


@pytest.mark.long
def test_mlflow_has_the_plan_the_losses_the_results_and_the_page(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    folder, logs = tmp_path / "run", ["--mlflow", tmp_path / "mlflow", "--mlflow-experiment", "digits"]
    result = execute("train", *DIGITS, *QUICK, "--json", *logs, "--out", folder)
    assert result.status == 0, result.err
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)
    plan = json.loads((folder / "config.json").read_text())["training"]
    assert run.data.params["client"] == "tree"
    assert run.data.params["settings.server.batch"] == str(plan["settings"]["server"]["batch"])
    for row in history(folder):
        points = client.get_metric_history(run.info.run_id, f"{row['stage']}/train_loss")
        assert points[int(row["epoch"]) - 1].value == float(row["train_loss"])
    first = result.json()[0]
    for name in ("system", "all_local", "confidence"):
        assert run.data.metrics[f"test/risk.{name}"] == first["risk"][name]
    assert run.data.metrics["test/reject_rate"] == first["reject_rate"]
    assert (
        Path(client.download_artifacts(run.info.run_id, "report.html")).read_bytes()
        == (folder / "report.html").read_bytes()
    )


def test_what_mlflow_is_told_of_must_be_reached_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    nobody = call("train", *DIGITS, *QUICK, "--mlflow", "http://127.0.0.1:9", "--out", folder)
    assert_told(nobody, 2, "MLflow cannot be used at http://127.0.0.1:9")
    alone = call("train", *DIGITS, *QUICK, "--mlflow-experiment", "digits", "--out", folder)
    assert alone.status == 2
    assert "goes with --mlflow" in one_line(alone.err)
    assert not folder.exists()


def test_without_the_flag_there_are_no_tensorboard_logs(seeds: list[Path]) -> None:
    assert not (seeds[1] / "tensorboard").exists()


@pytest.mark.usefixtures("no_pictures")
def test_force_replaces_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["train", *DIGITS, *QUICK, "--tensorboard", "--out", folder]
    assert call(*arguments, "--option", "server.width=0.5").status == 0
    first = files_of(folder)
    assert call(*arguments, "--force", "--quiet").status == 2, "--quiet belongs before the command"
    assert files_of(folder) == first
    result = call("--quiet", *arguments, "--force")
    assert result.status == 0
    assert result.err == "", "quiet: only results"
    assert "risk" in result.out
    second = files_of(folder)
    assert json.loads(second["config.json"])["training"]["server_options"] == {}
    assert second["checkpoints/server.safetensors"] != first["checkpoints/server.safetensors"]
    logs = [name for name in second if name.startswith("tensorboard/")]
    assert len(logs) == 1, "the old run's logs are gone, the new run's are there"


@pytest.mark.usefixtures("no_pictures")
def test_the_same_seed_gives_the_same_run(trained: tuple[Path, Result], tmp_path: Path) -> None:
    prices = ["--c-e", "0.1", "--c-e", "0.3", "--c-1", "1.25"]
    result = call("train", *DIGITS, *QUICK, *prices, "--json", "--out", tmp_path / "again")
    assert result.json() == trained[1].json()


# Data and clients of other kinds.


@pytest.fixture
def table(tmp_path: Path) -> Path:
    from sklearn.datasets import make_classification

    X, y = make_classification(500, n_features=8, n_informative=5, n_classes=3, random_state=0)
    path = tmp_path / "table.npz"
    np.savez(
        path, X_train=X[:400].astype(np.float32), y_train=y[:400], X_test=X[400:].astype(np.float32), y_test=y[400:]
    )
    return path


@pytest.mark.usefixtures("no_pictures")
def test_a_table_with_perceptrons(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    models = ["--client", "mlp", "--server", "mlp", "--client-share", "0.3"]
    result = call("train", "--data", table, *models, *QUICK, "--json", "--out", folder)
    assert result.status == 0
    (report,) = result.json()
    assert_schema(report)
    assert (report["dataset"], report["samples"]) == ("table", 100)
    assert {row["stage"] for row in history(folder)} == {"client", *STAGES}
    assert (folder / "report.html").stat().st_size > 1000
    assert_same(call("evaluate", folder, "--json").json()[0], report)


def client_data() -> tuple[np.ndarray, np.ndarray]:
    data = l2h.load_dataset("digits")
    return data.X_train[:400], data.y_train[:400]


def write_tree(path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.tree import DecisionTreeClassifier

    X, y = client_data()
    rows = X.reshape(len(X), -1).astype(np.float32)
    tree = DecisionTreeClassifier(max_depth=6, random_state=0).fit(rows, y)
    path.write_bytes(to_onnx(tree, rows[:1], options={"zipmap": False}).SerializeToString())


def linear_net() -> torch.nn.Module:
    """A linear net that has seen a few steps: better than chance, far from good."""
    X, y = client_data()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.from_numpy(X).float() / 127.5 - 1
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), torch.from_numpy(y)).backward()
        optimizer.step()
    return net


def write_torchscript(path: Path) -> None:
    torch.jit.save(torch.jit.trace(linear_net(), torch.zeros(2, 1, 8, 8)), str(path))


def write_exported(path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(linear_net(), (torch.zeros(2, 1, 8, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "write"), [("tree.onnx", write_tree), ("net.pt", write_torchscript), ("net.pt2", write_exported)]
)
def test_a_client_from_a_file(name: str, write: object, tmp_path: Path) -> None:
    path, folder = tmp_path / name, tmp_path / "run"
    write(path)  # type: ignore[operator]
    before = path.read_bytes()
    models = ["--client", path, "--server", "lenet5"]
    result = call("train", "--data", "digits", "--limit", "300", *models, *QUICK, "--json", "--out", folder)
    assert result.status == 0
    (report,) = result.json()
    data = l2h.load_dataset("digits", limit=300)
    client = l2h.as_client(path).answers(data.X_test, 10)
    assert report["accuracy"]["client"] == pytest.approx(np.mean(client.label == data.y_test))
    assert report["accuracy"]["client"] > 0.2
    assert path.read_bytes() == before, "the client cannot change"
    assert_same(call("evaluate", folder, "--json").json()[0], report)


@pytest.mark.usefixtures("no_pictures")
def test_a_server_from_a_file_is_kept_as_it_is(tmp_path: Path) -> None:
    path, folder = tmp_path / "server.onnx", tmp_path / "run"
    write_tree(path)
    models = ["--client", "tree", "--option", "client.max_depth=2", "--server", path]
    result = call("train", "--data", "digits", "--limit", "300", *models, *QUICK, "--json", "--out", folder)
    assert result.status == 0
    (report,) = result.json()
    assert {row["stage"] for row in history(folder)} == {"rejector"}
    assert report["accuracy"]["server"] > report["accuracy"]["client"]
    assert_same(call("evaluate", folder, "--json").json()[0], report)


def test_a_pickle_is_no_client(tmp_path: Path) -> None:
    path = tmp_path / "client.pkl"
    path.write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    result = call("train", *DIGITS, "--client", path, "--out", tmp_path / "run")
    assert result.status == 1
    assert "pickle" in result.err


@pytest.mark.usefixtures("no_pictures")
def test_the_papers_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = ["--recipe", "paper", "--loss", "shifted", "--rejector", "separate", "--set", "server.epochs=1"]
    result = call("train", *DIGITS, *recipe, "--c-e", "0.1", "--c-e", "0.2", "--json", "--out", folder)
    assert result.status == 0
    assert [report["costs"]["c_e"] for report in result.json()] == [0.1, 0.2]
    assert [row["stage"] for row in history(folder)] == ["server and rejector"]
    other = call("evaluate", folder, "--c-e", "0.15")
    assert other.status == 2
    assert "no rejector was trained for" in other.err
