"""A command as a process of its own prints and writes what it does where other tests call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import DIGITS, QUICK, Result, call, execute, files_of

#: What says when, where and how fast a run was made.
OWN = ("created", "version", "digest", "folder", "seconds", "command")


def without_own(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_own(below) for name, below in value.items() if name not in OWN}
    return [without_own(below) for below in value] if isinstance(value, list) else value


@pytest.mark.long
def test_a_process_says_and_writes_what_a_call_does(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder, called = trained
    prices = ["--c-e", "0.1", "--c-e", "0.3", "--c-1", "1.25"]
    run = execute("train", *DIGITS, *QUICK, *prices, "--json", "--tensorboard", "--out", tmp_path / "run")
    assert run.status == 0, run.err
    assert without_own(run.json()) == without_own(called.json())
    logs = "tensorboard/"  # their names have the process and the time
    names = [{name for name in files_of(one) if not name.startswith(logs)} for one in (tmp_path / "run", folder)]
    assert names[0] == names[1]
    small = ["compare", "--data", "digits", "--limit", 300, "--client", "tree", "--server", "mlp", "--seeds", 1]
    small += ["--method", "all-local", "--method", "confidence", *QUICK[:-2]]
    for arguments in (
        ["evaluate", folder, "--json"],
        ["export", folder, "--json", "--out"],
        [*small, "--json", "--out"],
        ["runs", folder.parent, "--json"],
    ):
        outs = [[tmp_path / f"{arguments[0]}-{which}"] if arguments[-1] == "--out" else [] for which in (0, 1)]
        process, inside = execute(*arguments, *outs[0]), call(*arguments, *outs[1])
        assert (process.status, inside.status) == (0, 0), process.err + inside.err
        assert without_own(json.loads(process.out)) == without_own(inside.json()), arguments
