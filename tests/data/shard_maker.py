"""Makes WebDataset files."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def write_tar(path: Path, encoded: list[bytes], labels: Any, label: str = "cls", start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i, (image, y) in enumerate(zip(encoded, labels, strict=True), start):
            text = json.dumps({"label": int(y), "by": "me"}) if label == "json" else str(y)
            for name, data in ((f"a/{i:04}.png", image), (f"a/{i:04}.{label}", text.encode()), (f"a/{i:04}.txt", b"x")):
                add_member(archive, name, data)
    return path
