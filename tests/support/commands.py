"""Running commands: in this process where that is enough, as a real process where it is not."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from waiting import STUCK

import l2h
from l2h.cli.app import run
from l2h.report.common import inline

#: A training of seconds, with every part of a real one.
QUICK = [
    *("--set", "server.epochs=2", "--set", "server.batch=32", "--set", "rejector.epochs=2"),
    *("--set", "folds=2", "--set", "copies=1", "--option", "rejector.width=1"),
]
DIGITS = ["--data", "digits", "--limit", "300", "--client", "tree", "--client-share", "0.3", "--server", "lenet5"]

#: metrics.json of schema 1.
SCHEMA: dict[str, Any] = {
    "dataset": str,
    "seed": int,
    "costs": {"c_e": float, "c_1": float},
    "accuracy": {"client": float, "server": float, "system": float},
    "reject_rate": float,
    "risk": {name: float for name in ("system", "all_local", "all_remote", "random", "confidence", "oracle")},
    "frontier": {name: float for name in ("area", "gain", "confidence_gain", "label_free_gain")},
    "contrastive": {side: {name: float for name in ("ratio", "client", "server")} for side in ("local", "remote")},
}


class Result(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """What is on stdout, which must be JSON and nothing else."""
        return json.loads(self.out)


def call(*arguments: object) -> Result:
    """A command in this process; the logger is put back as it was."""
    log = logging.getLogger("l2h")
    before = log.level, log.propagate, list(log.handlers)
    out, err = io.StringIO(), io.StringIO()
    words = [str(argument) for argument in arguments]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(sys, "argv", ["l2h", *words])  # some commands note how they were called
            status = run(words)
    finally:
        log.level, log.propagate, log.handlers = before
        log.setLevel(before[0])
    return Result(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Within the block every picture that this process saves is one white pixel, for tests of everything else."""
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1), "white").save(pixel, "PNG")
    empty = {"png": pixel.getvalue(), "svg": b'<svg viewBox="0 0 1 1"><g/></svg>'}

    def save(figure: Figure, file: io.BytesIO, *, format: str, **_: Any) -> None:
        file.write(empty[format])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
        patch.setattr(inline, "NARROW", 99.0)  # the one pixel serves a telephone too
        yield


def environment(**more: str) -> dict[str, str]:
    """For a process that finds this package, counts on one thread and is not told to use colours."""
    forced = ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in forced}
    source = str(Path(l2h.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def command(*arguments: object) -> list[str]:
    """``python -m l2h ...``."""
    return [sys.executable, "-m", "l2h", *(str(argument) for argument in arguments)]


def start(*arguments: object, folder: Path | None = None) -> subprocess.Popen[str]:
    """A command as a real process, in a folder of its own where one is given, its output no terminal."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*arguments), cwd=folder, env=environment(), **pipes)


def execute(*arguments: object, folder: Path | None = None) -> Result:
    """The same, to its end."""
    with start(*arguments, folder=folder) as process:
        try:
            out, err = process.communicate(timeout=STUCK)
        except BaseException:
            process.kill()
            raise
    return Result(process.returncode, out, err)


def assert_schema(metrics: dict[str, Any], schema: dict[str, Any] = SCHEMA) -> None:
    """Every key of the schema is there, with a value of its type or null."""
    for key, kind in schema.items():
        assert key in metrics
        value = metrics[key]
        if isinstance(kind, dict):
            assert_schema(value, kind)
        elif value is not None:
            assert isinstance(value, int | float if kind is float else kind)
            assert not isinstance(value, bool)


def assert_same(again: dict[str, Any], before: dict[str, Any]) -> None:
    """The same figures: what is counted is equal; a stated probability may differ by the rounding of float32.

    A tree in memory states a leaf's share in double precision, the same tree from its file in single.
    """
    counted = ("dataset", "seed", "samples", "costs", "accuracy", "reject_rate", "risk", "contrastive")
    assert {name: again[name] for name in counted} == {name: before[name] for name in counted}
    for name, head in before["heads"].items():
        assert again["heads"][name]["ece"] == pytest.approx(head["ece"], abs=1e-6)
        for key, values in head["reliability"].items():
            assert again["heads"][name]["reliability"][key] == pytest.approx(values, abs=1e-6)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_line(text: str) -> str:
    """Text without the line breaks and frames that a terminal's width puts in."""
    return " ".join(text.replace("│", " ").split())


def assert_told(result: Result, status: int | Sequence[int], *words: str) -> None:
    """The command failed with one line that holds these words, without a traceback or results."""
    assert result.status in ([status] if isinstance(status, int) else status)
    assert "Traceback" not in result.err
    assert result.out == ""
    told = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    for word in words:
        assert word in told[0]
