"""What the state machines over real processes share: processes in slots, a disk that fails, and clocks that are set."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from lives import Life, Lives
from preload import FAULTS, Preload

DAY = 86400.0
#: Which call of the file system fails, how, and for how many calls; while the file is opened or later.
FAULT = {
    "at": st.integers(1, 12),
    "how": st.sampled_from(FAULTS[1:]),
    "error": st.sampled_from([errno.EIO, errno.ENOSPC]),
    "lasting": st.sampled_from([1, 1000]),
    "opening": st.booleans(),
}


class History(RuleBasedStateMachine):
    """Processes that share a file, under clocks that the history sets; subclasses make rules of these steps."""

    def __init__(self, lives: Lives, preload: Preload, path: Path, wall: float) -> None:
        super().__init__()
        self.lives, self.preload, self.path = lives, preload, path
        for file in path.parent.iterdir():
            file.unlink()
        self.open: dict[int, Life] = {}
        self.wall, self.boot, self.boot_number = wall, 1000.0, 1
        self.set_clocks()

    def pass_time(self, span: float) -> None:
        self.wall += span
        self.boot += span
        self.set_clocks()

    def step_the_clock(self, jump: float) -> None:
        self.wall += jump
        self.set_clocks()

    def kill(self, slot: int) -> None:
        if slot in self.open:
            self.open.pop(slot).kill()

    def restart_the_system(self, span: float, jump: float) -> None:
        for slot in list(self.open):
            self.kill(slot)
        self.wall += span + jump
        self.boot, self.boot_number = 5.0, self.boot_number + 1
        self.set_clocks()

    def teardown(self) -> None:
        self.preload.disarm()
        for life in self.open.values():
            self.lives.give_back(life)

    def set_clocks(self) -> None:
        self.preload.freeze(self.wall, self.boot, self.boot_number)

    def begin(self, slot: int, hopeful: bool, *opening: str) -> Life | None:
        """The process of a slot, with its file open; None where that may fail, and did."""
        if slot not in self.open:
            life = self.open[slot] = self.lives.begin()
            failure = life.call(*opening)
            if failure is not None:
                assert hopeful, failure
                self.kill(slot)
                return None
        return self.open[slot]


def run_histories(make: Callable[[Path], History], folder: Path, count: int) -> None:
    """Run so many histories, each in the emptied folder."""
    folder.mkdir()
    quiet = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        lambda: make(folder), settings=settings(max_examples=count, stateful_step_count=12, **quiet)
    )
