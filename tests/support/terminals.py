"""Programs on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence

from commands import environment
from waiting import STUCK


def on_a_terminal(words: Sequence[str], columns: int = 120) -> tuple[int, str]:
    """Exit status of a program, and all that a terminal of so many columns got to see."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        words,
        env=environment(TERM="xterm-256color", COLUMNS=str(columns), LINES="40"),
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
    return process.wait(timeout=STUCK), seen.decode()
