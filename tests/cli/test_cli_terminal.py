"""On a terminal there are bars; with ``--quiet`` there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import DIGITS, QUICK, command
from terminals import on_a_terminal


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_bar_a_stage_on_a_terminal(tmp_path: Path) -> None:
    status, seen = on_a_terminal(command("train", *DIGITS, *QUICK, "--out", tmp_path / "run"))
    assert status == 0
    assert "\x1b[" in seen, "escape codes"
    assert "━" in seen, "a bar"
    for stage in ("server fold 1", "server fold 2", "rejector"):
        assert stage in seen
    assert "loss " in seen
    assert "oracle" in seen, "the table comes after"


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_quiet_on_a_terminal_shows_results_alone(tmp_path: Path) -> None:
    status, seen = on_a_terminal(command("--quiet", "train", *DIGITS, *QUICK, "--out", tmp_path / "run"))
    assert status == 0
    assert "━" not in seen
    assert "server fold 1" not in seen
    assert "oracle" in seen
