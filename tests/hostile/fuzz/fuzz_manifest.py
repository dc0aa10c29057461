"""The manifest of a bundle: any JSON is a manifest or a :class:`BundleError`, and a manifest names files of its folder.

An input gets the digest that belongs to it, as whoever writes the folder can do it, unless it begins with a zero byte.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from fuzzing import at_most, scratch
from fuzzing import mutate_json as mutate
from manifest_digest import with_digest

from l2h.bundle import BundleError, Manifest
from l2h.bundle.manifest import read_files

__all__ = ["check", "mutate"]

FOLDER = scratch()


def check(data: bytes) -> None:
    path = FOLDER / "manifest.json"
    path.write_bytes(data[1:] if data.startswith(b"\0") else stamped(data))
    with at_most(64 * len(data) + 2**19):
        for side in ("device", "server"):
            with suppress(BundleError):
                read_files(FOLDER, Manifest.read(FOLDER), side)
    with suppress(BundleError):
        manifest = Manifest.read(FOLDER)
        assert all(Path(name).name == name for name in manifest.files)
        manifest.write(FOLDER)
        assert Manifest.read(FOLDER) == manifest


def stamped(data: bytes) -> bytes:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return with_digest(values).encode() if isinstance(values, dict) else data
