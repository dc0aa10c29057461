"""Work in a forked child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> str:
    """What the work gives in a forked child, or the error that it raises; the child is killed after twenty seconds."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            said = str(work())
        except BaseException as error:  # noqa: BLE001 - nothing may leave the child
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said
