from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_process import Api, running_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    folder = tmp_path / "api"
    folder.mkdir()
    with running_api(folder) as running:
        yield running
