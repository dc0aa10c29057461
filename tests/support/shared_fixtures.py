"""Fixtures that several folders share."""

from __future__ import annotations

import fcntl
import functools
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle_maker import KINDS
from commands import undrawn
from serving_maker import linear, write_bundle

from l2h import HelpSystem


@pytest.fixture(scope="session", autouse=True)
def operators() -> Iterator[None]:
    """torch's table of the operators that it can export is built once: it is half of the time of every export."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


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


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's half of a small bundle, which no test changes."""
    folder = tmp_path_factory.mktemp("bundle") / "digits"
    write_bundle(folder, linear())
    return folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a certificate that nobody has signed, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *more, *names], check=True, capture_output=True)
    return cert, key


@pytest.fixture(autouse=True)
def unchanged_logger() -> None:
    """A test finds the logger as it is at first, whatever a command or a fixture of a wider scope set up before."""
    log = logging.getLogger("l2h")
    log.propagate, log.handlers[:] = True, []
    log.setLevel(logging.NOTSET)
