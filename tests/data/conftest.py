from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

Pixels = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the cache of whoever runs it."""
    folder = tmp_path / "l2h-cache"
    monkeypatch.setenv("L2H_CACHE", str(folder))
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def images(rng: np.random.Generator) -> Pixels:
    """Twelve colour images (n, C, H, W), higher than wide so that the axes cannot be mistaken."""
    return rng.integers(0, 256, (12, 3, 6, 5), dtype=np.uint8)


@pytest.fixture
def encode() -> Callable[..., bytes]:
    def encode(pixels: Pixels, kind: str = "PNG") -> bytes:
        """One image (C, H, W) as the bytes of a file."""
        plane = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(plane)).save(file, kind)
        return file.getvalue()

    return encode


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(
        path: Path,
        encoded: Sequence[bytes | None],
        labels: Sequence[int | None],
        names: Sequence[str] | None = None,
        *,
        image: str = "img",
        label: str = "label",
    ) -> Path:
        rows = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(encoded)]
        table = pa.table(
            {
                image: pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
                label: pa.array(labels, pa.int64()),
            }
        )
        if names is not None:
            features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, path, row_group_size=5)
        return path

    return write
