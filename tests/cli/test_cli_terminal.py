"""On a terminal there are bars; with ``--quiet`` there are none."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from commands import DIGITS, QUICK, command, environment


def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """Exit status and all that a terminal of 120 columns got to see."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        env=environment(TERM="xterm-256color", COLUMNS="120", LINES="40"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    seen = bytearray()
    try:
        while chunk := os.read(leader, 65536):
            seen += chunk
    except OSError:  # how Linux says that the other side has closed
        pass
    finally:
        os.close(leader)
    return process.wait(timeout=60), seen.decode()


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_bar_a_stage_on_a_terminal(tmp_path: Path) -> None:
    status, seen = on_a_terminal("train", *DIGITS, *QUICK, "--out", tmp_path / "run")
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
    status, seen = on_a_terminal("--quiet", "train", *DIGITS, *QUICK, "--out", tmp_path / "run")
    assert status == 0
    assert "━" not in seen
    assert "server fold 1" not in seen
    assert "oracle" in seen
