from __future__ import annotations

import pytest
from exchange_maker import IDENTITY, TOKEN, publish
from fault_proxy import FaultProxy

from l2h.training.exchange import PublisherServer, SnapshotStore


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(tmp_path / "store")


@pytest.fixture
def server(store):
    with PublisherServer(store, IDENTITY, TOKEN) as running:
        yield running


@pytest.fixture
def proxy(server):
    between = FaultProxy(server.port)
    yield between
    between.close()


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A publisher with one snapshot of 1000 bytes that no test changes."""
    store = SnapshotStore(tmp_path_factory.mktemp("standing"))
    publish(store, 0, size=1000)
    with PublisherServer(store, IDENTITY, TOKEN) as running:
        yield running
