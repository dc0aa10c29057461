from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from collector import Collector

#: A whole system: the device's half and the server's.
BUNDLE = Path(__file__).parents[1] / "compatibility" / "version_0_1" / "priced-bundle"


@pytest.fixture(scope="session")
def bundle() -> Path:
    return BUNDLE


@pytest.fixture(scope="session")
def inputs() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 17, (64, 1, 8, 8)).astype(np.uint8)


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.close()
