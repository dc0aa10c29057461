from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from serving_fixtures import bundle, postgres

__all__ = ["bundle", "postgres"]


@pytest.fixture(scope="session")
def field_bundle(bundles: Callable[[str], Path]) -> Path:
    """The bundle of a small system on the digits."""
    return bundles("fused")
