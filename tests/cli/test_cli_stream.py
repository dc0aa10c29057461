"""``l2h train`` and ``l2h evaluate`` on images that are read from disk, and on damaged ones."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from commands import QUICK, assert_told, call, undrawn
from PIL import Image

from l2h.data import load_dataset

MODELS = ["--client", "tree", "--client-share", "0.3", "--server", "lenet5"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as WebDataset: two train files and a test file, 100 images each."""
    folder, data = tmp_path_factory.mktemp("shards") / "figures", load_dataset("digits")
    folder.mkdir()
    for name, start in (("train-000", 0), ("train-001", 100), ("test-000", 200)):
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            for i in range(start, start + 100):
                image = io.BytesIO()
                Image.fromarray(data.X_train[i, 0]).save(image, "PNG")
                for member, text in ((f"{i:04}.png", image.getvalue()), (f"{i:04}.cls", b"%d" % data.y_train[i])):
                    entry = tarfile.TarInfo(member)
                    entry.size = len(text)
                    archive.addfile(entry, io.BytesIO(text))
    return folder


def files_of(run: Path) -> dict[str, Any]:
    names = ("metrics.json", "config.json", *(str(path.relative_to(run)) for path in run.rglob("*.safetensors")))
    return {name: (run / name).read_bytes() for name in sorted(names)}


def test_a_run_is_the_same_from_disk_and_is_evaluated_from_there(shards: Path, tmp_path: Path) -> None:
    cache = tmp_path / "decoded"
    with undrawn():
        for way in ("--stream", "--no-stream"):
            out = tmp_path / way.strip("-")
            found = call("train", "--data", shards, *MODELS, *QUICK, way, "--cache", cache, "--out", out)
            assert found.status == 0, found.err
            assert ("batch by batch (as asked)" if way == "--stream" else "into memory (as asked)") in found.err
    first, second = files_of(tmp_path / "stream"), files_of(tmp_path / "no-stream")
    assert first == second
    assert len(first) > 4
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    early = ["train", "--data", shards, "--stream", "--cache", tmp_path / "unused"]
    assert_told(call(*early, *MODELS, "--out", out), 1, "already holds a run")
    assert_told(
        call(*early, "--client", "none.onnx", "--server", "lenet5", "--out", tmp_path / "new"), 1, "no file at none"
    )
    assert not (tmp_path / "unused").exists(), "nothing is decoded for a command that cannot do anything"
    again = call("evaluate", tmp_path / "stream", "--json")  # the run knows its cache
    assert again.status == 0, again.err
    assert again.json()[0]["risk"] == json.loads(first["metrics.json"])["risk"]
    assert call("calibrate", tmp_path / "stream").status == 0
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == kept


def test_a_damaged_file_stops_a_run_or_is_left_out_of_it_for_good(shards: Path, tmp_path: Path) -> None:
    data = tmp_path / "figures"
    data.mkdir()
    for file in shards.iterdir():
        whole = file.read_bytes()
        (data / file.name).write_bytes(whole[: 3 * len(whole) // 4] if file.name == "train-001.tar" else whole)
    command = ["train", "--data", data, *MODELS, *QUICK, "--cache", tmp_path / "decoded", "--out", tmp_path / "run"]
    stopped = call(*command)
    assert stopped.status == 1
    assert "train-001.tar is cut off: the file is not whole" in stopped.err
    assert len(stopped.err.strip().splitlines()[-1]) < 400
    assert call(*command, "--on-error", "ignore").status != 0
    with undrawn():
        trained = call(*command, "--stream", "--on-error", "skip")
    assert trained.status == 0, trained.err
    assert "left out: " in trained.err
    for verb in ("evaluate", "calibrate"):
        found = call(verb, tmp_path / "run")
        assert found.status == 0, found.err
        assert "train-001.tar" in found.err
    assert call("evaluate", tmp_path / "run", "--on-error", "stop").status == 1


def test_an_error_does_not_steer_the_terminal(tmp_path: Path) -> None:
    found = call("evaluate", tmp_path / "a\x1b[2Jb")
    assert found.status == 1
    assert "a\\x1b[2Jb holds no run" in found.err
    assert "\x1b[2J" not in found.err


def test_a_run_is_not_calibrated_on_samples_that_it_was_trained_on(shards: Path, tmp_path: Path) -> None:
    """Where a file is lost or changed the rows are divided otherwise."""
    data, run = shutil.copytree(shards, tmp_path / "figures"), tmp_path / "run"
    with undrawn():
        trained = call("train", "--data", data, *MODELS, *QUICK, "--stream", "--cache", tmp_path / "c", "--out", run)
        assert trained.status == 0, trained.err
    assert call("calibrate", run).status == 0
    before = files_of(run)
    (data / "train-000.tar").unlink()
    for change in ("lost", "replaced"):
        assert_told(call("calibrate", run), 1, "figures no longer holds the samples that", "give --data")
        assert files_of(run) == before, change
        shutil.copy(shards / "test-000.tar", data / "train-000.tar")
    assert call("calibrate", run, "--data", data).status == 0
    note = run / "checkpoints" / "training.json"
    note.write_text("{")
    assert_told(call("calibrate", run), 1, "training.json is damaged")
    note.unlink()
    assert call("calibrate", run).status == 0, "runs of earlier versions do not say what they were trained on"
