"""The clock of the accounts: that of the database, made steady by what the servers' own clocks say.

The database has a wall clock alone, which may be set. A worker that sees it jump, by the time that has passed on its
own host, adds the difference to ``clock_shift``, and all workers go on with that.
"""

from typing import NamedTuple

from l2h.clock import boot_time
from l2h.serving.accounts.periods import Now
from l2h.serving.accounts.postgres.connection import Connection
from l2h.serving.process.logs import log_event

#: What reads the clock; run after all locks are taken.
READ = "SELECT extract(epoch FROM clock_timestamp())::float8, clock_shift, clock_steps FROM meta"
#: Seconds, and the share of the time that has passed, by which two clocks may differ without a step of one.
_SECONDS, _SHARE = 2.0, 1e-3
#: Seconds within which an answer tells what time it is here as well.
_QUICK = 1.0
#: Stands for the one start of this clock.
SINCE = "database"


def steady_now(wall: float, shift: float) -> Now:
    """Return the time, from the first columns of :data:`READ`."""
    return Now(wall, wall + shift, SINCE)


class _Seen(NamedTuple):
    steps: int
    steady: float
    here: float  # on this host's clock


class DatabaseClock:
    """What one worker remembers of the clock."""

    def __init__(self) -> None:
        self._seen: _Seen | None = None

    def read(self, row: tuple[float, float, int], asked: float) -> Now | None:
        """Return the time, from a row of :data:`READ` that has just come; None where the clock has jumped.

        ``asked`` is the time on this host before it was asked for. An answer that took long tells less, and is not
        remembered.
        """
        wall, shift, steps = row
        here = boot_time()
        seen, steady = self._seen, wall + shift
        if seen is not None and seen.steps == steps:
            earliest, latest = (seen.steady + at - seen.here for at in (asked, here))
            slack = _SECONDS + _SHARE * (here - seen.here)
            if not earliest - slack <= steady <= latest + slack:
                return None
        if here - asked < _QUICK:
            self._seen = _Seen(steps, steady, here)
        return steady_now(wall, shift)

    def correct(self, db: Connection) -> None:
        """Undo a jump for everybody, unless another worker did it first."""
        seen = self._seen
        if seen is None:
            return
        with db.transaction():  # where it fails, the next read finds the jump again
            db.execute("LOCK TABLE rates IN EXCLUSIVE MODE")  # no rate is taken by the time before
            wall, before, steps = db.execute(READ).fetchall()[0]
            if steps != seen.steps:
                self._seen = None
                return
            shift = seen.steady + boot_time() - seen.here - wall
            change = shift - before
            db.execute("UPDATE meta SET clock_shift = %s, clock_steps = clock_steps + 1", (shift,))
            if change < 0:  # what was taken after a step forward would count for as long as the step
                taken = "UPDATE rates SET empty_at = empty_at + %s WHERE empty_at >= %s"
                db.execute(taken, (change, seen.steady - change))
        self._seen = None
        log_event("warning", "clock_corrected", seconds=round(change, 3))
