"""The bars of :mod:`l2h.training.bars` on the console of the commands; lines of the log where there is no terminal."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from l2h.cli.output import console, log
from l2h.training import Progress, bars


def training_progress(*others: Progress) -> AbstractContextManager[Progress]:
    """Show a training, and tell the others of it."""
    return bars.training_progress([log.isEnabledFor(logging.INFO), *others], console, log.info)


def count_progress(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Give a function that is told how many of how many are done, and shows it."""
    return bars.count_progress(title, log.isEnabledFor(logging.INFO), console, log.info)
