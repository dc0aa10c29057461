"""Are the files of a bundle the ones that its manifest describes?"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import Manifest


def verify(folder: str | Path, side: str) -> Manifest:
    """Check the manifest, and presence, size and SHA-256 of every file that a side needs; the other side's may be away.

    Args:
        folder: the bundle.
        side: ``device`` or ``server``.

    Raises:
        BundleError: with the reason.
    """
    return read_side(folder, side)[0]


def read_side(folder: str | Path, side: str) -> tuple[Manifest, dict[str, bytes]]:
    """As :func:`verify`, with the bytes that were verified: what is loaded from them is what was looked at."""
    manifest = Manifest.read(folder)
    return manifest, {name: read_file(folder, manifest, name) for name in manifest.of(side)}


def read_file(folder: str | Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a file, if they are the manifest's.

    Raises:
        BundleError: they are not.
    """
    path, part = Path(folder) / name, manifest.files[name]
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size == part.bytes else b""
    except FileNotFoundError:
        raise BundleError(f"{folder} is not whole: {name} is missing; copy the bundle again") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) != part.bytes:
        raise BundleError(
            f"{path} is damaged: it has {size} bytes, the manifest says {part.bytes}; copy the bundle again"
        )
    found = sha256(data).hexdigest()
    if found != part.sha256:
        raise BundleError(
            f"{path} is damaged: its SHA-256 begins {found[:12]}, the manifest says {part.sha256[:12]}; "
            "copy the bundle again"
        )
    return data
