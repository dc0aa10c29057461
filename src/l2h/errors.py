"""The errors L2H raises. Each message says what was wrong, with the value, and what to do about it."""

import inspect
import shlex
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import numpy as np

_HERE = str(Path(__file__).parent)


def shown(value: object, most: int = 60) -> str:
    """Return the ``repr`` of a value in one line, cut to ``most`` characters for a message."""
    lines = repr(value.item() if isinstance(value, np.generic) else value).splitlines()
    text = " ".join(line.strip() for line in lines)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def reason(error: BaseException, most: int = 300) -> str:
    """Return the message of an error in one line, cut to ``most`` characters; its type where that is empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type where that is empty.

    Example:
        >>> first_line(ValueError("no\\nway")), first_line(ValueError())
        ('no', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class L2HError(Exception):
    """Base of every error that L2H raises on purpose."""


@contextmanager
def about(what: str | None) -> Iterator[None]:
    """Put before the message of an error of L2H what it is about; None leaves it as it is."""
    try:
        yield
    except L2HError as error:
        if what is not None:
            error.args = (f"{what}: {error}",)
        raise


def in_one_line(name: str) -> str:
    """Return the name of a file or a sample for messages: what would end a line or steer a terminal is escaped."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class L2HWarning(UserWarning):
    """Base of every warning that L2H gives."""


def warn(text: str) -> None:
    """Give an :class:`L2HWarning` at the caller's line outside of L2H."""
    frames = (frame for frame, _ in traceback.walk_stack(inspect.currentframe()))
    inside = list(takewhile(lambda frame: frame.f_code.co_filename.startswith(_HERE), frames))
    warnings.warn(text, L2HWarning, stacklevel=len(inside) + 1)


class CostError(L2HError, ValueError):
    """Costs that are negative, not finite, or that reward a wrong answer."""


class DataError(L2HError, ValueError):
    """Samples or labels that cannot be used: wrong shape, wrong type, NaN, damaged file."""


class ClientError(L2HError, ValueError):
    """A client classifier that cannot be run or whose answers do not fit the labels."""


class ModelError(L2HError, ValueError):
    """An unknown model name, or a model whose output does not fit its place."""


class UnknownNameError(ModelError):
    """A name that is none of the known ones; the message lists them."""


class SettingsError(L2HError, ValueError):
    """A training setting out of its range."""


class NotFittedError(L2HError, RuntimeError):
    """A verb was called before the one it needs: fit, then calibrate, then predict or evaluate."""


class RunError(L2HError, RuntimeError):
    """A run folder that is missing, damaged, or already holds a run."""


class CheckpointError(RunError):
    """A checkpoint that could not be written or read. The previous one is left as it was."""


class ResumeError(RunError):
    """A resume whose settings differ from those the run was started with."""


class ExportError(L2HError, RuntimeError):
    """A system that cannot be exported, a file that differs from its original, or a folder that is taken."""


class ConversionError(ExportError):
    """A model that cannot be converted to ONNX."""


class MissingExtraError(L2HError, ImportError):
    """An optional part was used whose packages are not installed."""


def missing_extra(what: str, extra: str) -> MissingExtraError:
    """Return the error that says what needs a package, and the command that installs the extra with it.

    In a checkout that is the checkout itself. Elsewhere L2H is installed, so that pip knows its name and its extras.
    """
    checkout = Path(_HERE).parents[1]
    source = ["-e", f"{checkout}[{extra}]"] if (checkout / "pyproject.toml").is_file() else [f"l2h[{extra}]"]
    return MissingExtraError(f"{what}: {shlex.join(['pip', 'install', *source])}")
