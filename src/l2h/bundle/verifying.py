"""Checks that the files of a bundle are the ones that its manifest describes."""

from hashlib import sha256
from pathlib import Path

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import Manifest


def verify(folder: str | Path, side: str) -> Manifest:
    """Check the manifest, and the size and SHA-256 of every file that a side needs; the other side's may be missing.

    Args:
        folder: the bundle.
        side: ``device`` or ``server``.

    Raises:
        BundleError: a file is missing or changed, or the manifest is damaged; the message says which.
    """
    return read_side(folder, side)[0]


def read_side(folder: str | Path, side: str) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and the verified bytes of every file that a side needs; raises as :func:`verify`."""
    manifest = Manifest.read(folder)
    return manifest, {name: read_file(folder, manifest, name) for name in manifest.files_of(side)}


def read_file(folder: str | Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a file, if they are those that the manifest describes.

    Raises:
        BundleError: the file is missing, or has another size or hash.
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
    digest = sha256(data).hexdigest()
    if digest != part.sha256:
        raise BundleError(
            f"{path} is damaged: its SHA-256 begins {digest[:12]}, the manifest says {part.sha256[:12]}; "
            "copy the bundle again"
        )
    return data
