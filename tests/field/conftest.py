from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

#: It runs inside MLServer, whose environment has what it imports.
collect_ignore = ["mlserver_model.py"]


@pytest.fixture(scope="session")
def field_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a small system on the digits; exported once for all workers."""
    from field_maker import export_digits

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "field"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "bundle").exists():
            export_digits(folder / "bundle")
    return folder / "bundle"
