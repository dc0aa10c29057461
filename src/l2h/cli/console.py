"""Everything that a person sees while a command works: on stderr."""

import logging

from rich.console import Console
from rich.logging import RichHandler

console = Console(stderr=True)
log = logging.getLogger("l2h")


def log_to_stderr(level: int) -> None:
    """Write the log of ``l2h`` to stderr: through rich on a terminal, so that the lines go above the bars."""
    log.setLevel(level)
    log.propagate = False
    log.handlers.clear()
    if console.is_terminal:
        handler: logging.Handler = RichHandler(
            console=console, show_path=False, show_level=False, show_time=False, markup=False
        )
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.addHandler(handler)
