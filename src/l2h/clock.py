"""A clock that no step of the system's time moves: seconds since the system started, and which start that was."""

import time
from pathlib import Path

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """Return seconds since the system started, sleep included: the same for all processes, and it never goes back."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


def boot_id() -> str | None:
    """Return what tells this start of the system from all others; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None
