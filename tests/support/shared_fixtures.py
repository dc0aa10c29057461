"""Fixtures that several folders share."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle_maker import KINDS
from commands import undrawn

from l2h import HelpSystem


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder of a name, made by whichever worker needs it first; no test changes it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "bundles"
    shared.mkdir(exist_ok=True)

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / name).exists():
                make(shared / name)
        return shared / name

    return folder


@pytest.fixture(scope="session")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HelpSystem]:
    """A system of each kind; training is quick and repeatable, so every worker trains its own."""
    made: dict[str, HelpSystem] = {}

    def system(kind: str) -> HelpSystem:
        if kind not in made:
            made[kind] = KINDS[kind](tmp_path_factory.mktemp("client"))
        return made[kind]

    return system


@pytest.fixture(scope="session")
def bundles(
    once: Callable[[str, Callable[[Path], object]], Path], systems: Callable[[str], HelpSystem]
) -> Callable[[str], Path]:
    """The bundle of each kind; exporting takes seconds, so it is done once for all workers."""
    return lambda kind: once(kind, lambda folder: systems(kind).export(folder))


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """Pictures that this process saves are not drawn: for tests of everything else."""
    with undrawn():
        yield
