from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clouds import CLASSES, FEATURES
from edge_maker import make_system, scores_of
from fault_proxy import FaultProxy
from rough_server import RoughServer

from l2h import Costs, EdgeClient, HelpSystem
from l2h.bundle import DeviceBundle


@pytest.fixture(scope="session")
def system() -> HelpSystem:
    return make_system()


@pytest.fixture(scope="session")
def folder(system: HelpSystem, once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The bundle of the system."""
    return once("edge", lambda path: system.export(path, name="clouds", costs=Costs(c_e=0.1)))


@pytest.fixture(scope="session")
def bundle(folder: Path) -> DeviceBundle:
    return DeviceBundle(folder)


@pytest.fixture(scope="module", autouse=True)
def light(folder: Path) -> Iterator[None]:
    """What training and other tests left behind is no part of a device: collecting it would stop every thread."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def server(folder: Path) -> Iterator[RoughServer]:
    with RoughServer(scores_of(folder), name="clouds", shape=(FEATURES,), datatype="FP32", classes=CLASSES) as running:
        yield running


@pytest.fixture
def proxy(server: RoughServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as between:
        yield between


@pytest.fixture
def connect(bundle: DeviceBundle) -> Iterator[Callable[..., EdgeClient]]:
    """Makes edge clients and closes them."""
    with ExitStack() as stack:

        def make(server: str | None = None, **options: Any) -> EdgeClient:
            return stack.enter_context(EdgeClient(options.pop("bundle", bundle), server, **options))

        yield make
