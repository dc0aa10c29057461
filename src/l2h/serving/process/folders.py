"""Private folders of a running server, which the next server removes where this one is killed."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from l2h.serving.errors import ServingError

_MEMORY = "/dev/shm"
#: Seconds within which a folder may not be locked yet by the one that made it.
_YOUNG = 60.0


def make_folder(purpose: str, *, in_memory: bool) -> tuple[Path, int]:
    """Make a folder for its owner alone; return it, and a descriptor whose lock says that it is in use.

    Files that are mapped belong in memory, where the system has such a place: a disk that fills up would kill whoever
    writes to one. Folders of servers that were killed are removed.
    """
    memory = os.access(_MEMORY, os.W_OK | os.X_OK)
    try:
        place = _MEMORY if in_memory and memory else tempfile.gettempdir()
    except FileNotFoundError as error:  # no disk can be written
        if not memory:
            raise ServingError(f"{error}: TMPDIR names a folder for a copy of the bundle") from error
        place = _MEMORY
    prefix = f"l2h-{purpose}-"
    for old in Path(place).glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _YOUNG and old.stat().st_uid == os.getuid():
                os.close(_lock(old))
                shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    return folder, _lock(folder)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
