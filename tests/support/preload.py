"""Faults of the disk and steps of the clock in another process, by a library that is loaded before all others."""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_FIELDS = ("wall", "boot", "frozen", "boot_number", "calls", "at", "how", "error", "lasting", "sleeps")
#: What a fault does: the process dies before the call, or in the middle of it; the call fails before anything is
#: written, or in the middle; or it writes only half and says so.
FAULTS = ("never", "die", "tear", "fail", "tear_fail", "short")


class Preload:
    """The library, built in a folder, and the clocks and faults of the processes that are started with it.

    Attributes:
        environment: variables that a process is started with.
    """

    def __init__(self, folder: Path) -> None:
        library, control = folder / "preload.so", folder / "control"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", library, source], check=True)
        control.write_bytes(bytes(8 * len(_FIELDS)))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library), "L2H_PRELOAD": str(control)}

    def set(self, **values: int) -> None:
        """Set fields of the control file."""
        for name, value in values.items():
            struct.pack_into("<q", self._memory, 8 * _FIELDS.index(name), value)

    def get(self, name: str) -> int:
        (value,) = struct.unpack_from("<q", self._memory, 8 * _FIELDS.index(name))
        return int(value)

    def step(self, *, wall: float = 0.0, boot: float = 0.0) -> None:
        """Move the clocks by seconds: the wall clock, and the time since the system's start."""
        self.set(wall=self.get("wall") + round(wall * 1e9), boot=self.get("boot") + round(boot * 1e9))

    def freeze(self, wall: float, boot: float, boot_number: int) -> None:
        """Let both clocks stand still from now on, at these seconds."""
        self.set(wall=round(wall * 1e9), boot=round(boot * 1e9), frozen=1, boot_number=boot_number)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock, which goes on from there."""
        self.set(wall=round((seconds - time.time()) * 1e9))

    def arm(self, at: int, how: str, error: int = errno.EIO, lasting: int = 1) -> None:
        """Let the ``at``-th call from now on that changes a file meet a fault."""
        self.set(calls=0, at=at, error=error, lasting=lasting)
        self.set(how=FAULTS.index(how))

    def disarm(self) -> None:
        self.set(how=0)

    def await_lock_wait(self, done: Callable[[], bool] = lambda: False) -> bool:
        """Return True once a process waits for a lock of SQLite, False once ``done`` says that it did not have to."""
        self.set(sleeps=0)
        end = time.monotonic() + 60
        while not self.get("sleeps"):
            if done():
                return False
            assert time.monotonic() < end, "nobody waits"
            time.sleep(0.0002)
        return True
