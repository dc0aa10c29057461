from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hostile_target import KEY, URL, OwnTarget, RunningTarget
from lives import Lives
from preload import Preload
from serving_fixtures import bundle, server, x

__all__ = ["bundle", "server", "x"]


def pytest_collection_modifyitems(config, items):
    """Only what needs no control over the server is run against one that somebody else started."""
    if URL in os.environ:
        here = os.path.dirname(__file__)
        others = [item for item in items if str(item.path).startswith(here) and "target" not in item.fixturenames]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def target(bundle, tmp_path_factory):
    """The server under attack: the one that was named, or one of our own with two workers and a key."""
    if URL in os.environ:
        yield RunningTarget(os.environ[URL], os.environ.get(KEY))
    else:
        with OwnTarget(bundle, tmp_path_factory.mktemp("target")) as running:
            yield running


@pytest.fixture(scope="session")
def memory(tmp_path_factory):
    """A folder whose files lie in memory, where there is one: thousands of histories write and never wait."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(dir=shared, prefix="l2h-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    """Faults of the disk and steps of the clock, for processes that are started with its environment."""
    return Preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture(scope="module")
def lives(preload, tmp_path_factory):
    forking = Lives(tmp_path_factory.mktemp("lives"), preload)
    yield forking
    forking.close()
