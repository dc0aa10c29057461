from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

#: It runs inside MLServer, whose environment has what it imports.
collect_ignore = ["mlserver_model.py"]


@pytest.fixture(scope="session")
def field_bundle(bundles: Callable[[str], Path]) -> Path:
    """The bundle of a small system on the digits."""
    return bundles("fused")
