"""``l2h runs``: what lies in a folder of runs, and two of them side by side."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import assert_told, call, one_line
from prompts import made_up
from scripts import python
from this_platform import VERSION_0_1

from l2h.files import read_json
from l2h.routing import fit_router


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, the older one deeper, beside folders of other things."""
    for name, when in (("deep/er/priced", 1_000_000_000), ("paper", 1_100_000_000)):
        shutil.copytree(VERSION_0_1 / Path(name).name, tmp_path / name)
        for file in ("config.json", "metrics.json"):
            os.utime(tmp_path / name / file, (when, when))
    for name, config in (("network", {"layers": 3}), ("list", [1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    shutil.copytree(VERSION_0_1 / "paper", tmp_path / ".hidden" / "paper")
    return tmp_path


def test_every_run_is_listed_with_what_its_files_hold(folder: Path) -> None:
    rows = call("runs", folder, "--json").json()
    assert [row["run"] for row in rows] == [str(folder / "deep/er/priced"), str(folder / "paper")]  # by their time
    for row in rows:
        metrics, plan = (read_json(Path(row["run"], name)) for name in ("metrics.json", "config.json"))
        assert row["finished"] is True
        assert (row["risk"], row["reject_rate"]) == (metrics["risk"]["system"], metrics["reject_rate"])
        assert (row["data"], row["client"], row["server"]) == tuple(
            plan["training"][k] for k in ("data", "client", "server")
        )
        assert row["when"].startswith(("2001-09-0", "2004-11-0"))
    shown = one_line(call("runs", folder).out.replace("\n ", "\n"))
    for row in rows:
        assert f"{row['risk']:.4f}" in shown
        assert f"{row['reject_rate']:.1%}" in shown


def test_two_runs_are_compared_setting_by_setting(folder: Path) -> None:
    one, two = folder / "deep/er/priced", folder / "paper"
    told = call("runs", one, two, "--json").json()
    plans: list[dict[str, Any]] = [read_json(run / "config.json")["training"] for run in (one, two)]
    metrics = [read_json(run / "metrics.json") for run in (one, two)]
    assert told["settings"]["settings.loss"] == ["priced", "shifted"]
    assert told["settings"]["settings.server.lr"] == [plan["settings"]["server"]["lr"] for plan in plans]
    assert "data" not in told["settings"]  # equal
    assert all(a != b for a, b in told["settings"].values())
    assert told["metrics"]["risk.system"] == [of["risk"]["system"] for of in metrics]
    assert told["metrics"]["frontier.gain"] == [of["frontier"]["gain"] for of in metrics]
    assert "settings.server.lr 0.002 0.02" in one_line(call("runs", one, two).out)
    assert "different prices" not in call("runs", one, two).out
    (two / "metrics.json").write_text(json.dumps(metrics[1] | {"costs": {"c_e": 0.5, "c_1": 1.0}}))
    assert "different prices" in call("runs", one, two).out
    (two / "metrics.json").unlink()
    assert call("runs", one, two, "--json").json()["metrics"]["risk.system"] == [metrics[0]["risk"]["system"], None]


def test_what_is_damaged_or_not_finished_is_said(folder: Path) -> None:
    config = read_json(folder / "paper/config.json")
    (folder / "paper/metrics.json").write_text("{")
    (folder / "paper/config.json").write_text(json.dumps({"schema": 1, "training": config["training"]}))
    shutil.copytree(folder / "paper", folder / "new")
    (folder / "new/config.json").write_text(json.dumps(config | {"schema": 99}))
    result = call("runs", folder, "--json")
    rows = {Path(row["run"]).name: row for row in result.json()}
    assert rows.keys() == {"paper", "priced"}
    assert (rows["paper"]["finished"], rows["paper"]["risk"]) == (False, None)
    assert "metrics.json is damaged" in result.err
    assert "schema 99" in result.err
    assert "unfinished" in call("runs", folder).out


def test_a_router_and_a_system_saved_by_python_are_listed(folder: Path) -> None:
    fit_router(*made_up(60)).save(folder / "router[1]")
    config = read_json(folder / "paper/config.json")
    (folder / "paper/config.json").write_text(json.dumps({"schema": 1, "system": config["system"]}))
    rows = {Path(row["run"]).name: row for row in call("runs", folder, "--json").json()}
    assert rows["router[1]"]["finished"]
    assert rows["paper"]["data"] == "digits"
    assert "router[1]" in one_line(call("runs", folder / "router[1]").out)


def test_a_folder_without_runs_is_told(tmp_path: Path) -> None:
    assert_told(call("runs", tmp_path), 1, str(tmp_path), "l2h train")
    assert_told(call("runs", tmp_path / "gone"), 1, str(tmp_path / "gone"))


def test_a_folder_without_runs_beside_another_is_named(folder: Path) -> None:
    (folder / "evaluated").mkdir()
    shutil.copy(folder / "paper/metrics.json", folder / "evaluated")
    result = call("runs", folder / "paper", folder / "evaluated", "--json")
    assert [row["run"] for row in result.json()] == [str(folder / "paper")]
    assert f"no runs in {folder / 'evaluated'}" in one_line(result.err)


def test_no_torch_is_needed() -> None:
    script = f"sys.argv = ['l2h', 'runs', {str(VERSION_0_1)!r}]\nfrom l2h.cli import main\nmain()"
    done = python(script, blocked=("torch", "sklearn", "matplotlib", "pyarrow", "onnx", "safetensors"))
    assert done.returncode == 0, done.stderr
    assert "lenet5" in done.stdout
