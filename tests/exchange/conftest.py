from __future__ import annotations

import pytest
from exchange_maker import IDENTITY, TOKEN
from exchange_proxy import FaultProxy

from l2h.exchange import PublisherServer, SnapshotStore


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
