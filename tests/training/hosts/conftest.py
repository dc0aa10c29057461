from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts_maker import PUBLISH, Pair, Program, save_data
from waiting import free_port


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three classes as an .npz."""
    return save_data(tmp_path_factory.mktemp("data") / "clouds.npz")


@pytest.fixture
def start(data: Path) -> Iterator[Callable[..., Program]]:
    """Start programs on that data; whatever is left of them is killed in the end."""
    programs: list[Program] = []

    def begin(role: str, out: Path, *more: object) -> Program:
        programs.append(Program(role, out, data, *more))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Pair:
    """Both sides as programs, over a link that never fails."""
    folder = tmp_path_factory.mktemp("unbroken")
    port = free_port()
    server = Program("server", folder / "server", data, *PUBLISH, "--linger", 120, "--listen", f"127.0.0.1:{port}")
    client = Program("client", folder / "client", data, "--server-url", f"http://127.0.0.1:{port}")
    try:
        client.finish()
        server.trained()
    finally:
        server.end()
        client.end()
    return Pair(server.out, client.out)
