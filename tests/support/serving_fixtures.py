"""Fixtures of the folders that attack or try a server; a conftest imports those it needs."""

from __future__ import annotations

import numpy as np
import pytest
from postgres_process import POSTGRES, Postgres
from serving_process import Server


@pytest.fixture(scope="session")
def bundle(served):
    return served


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    """An open server with two workers, for tests that leave it as it was."""
    with Server(bundle, tmp_path_factory.mktemp("server"), workers=2) as running:
        yield running


@pytest.fixture
def x():
    return np.random.default_rng(0).integers(0, 255, (3, 1, 4, 4)).astype(np.uint8)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server; a test that ends it starts it again."""
    if POSTGRES is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    server = Postgres()
    yield server
    server.remove()
