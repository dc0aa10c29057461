"""Writing a bundle: beside its place, and moved there in one piece."""

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from l2h.bundle.manifest import MANIFEST, Manifest, read_file
from l2h.bundle.signing import SIGNATURE, write_signature
from l2h.errors import CheckpointError, ExportError
from l2h.files import read_json, read_whole, sync_folder, write_atomically

#: Seconds after which a folder that a killed export left behind is removed by the next one.
_STALE = 3600


def check_target(folder: Path, force: bool) -> None:
    """Refuse a file, or a folder that holds anything but a bundle which ``force`` allows to replace."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ExportError(f"{folder} is a file: choose a folder")
    names = {path.name for path in folder.iterdir()}
    if not names:
        return
    ours = _bundle_files(folder)
    if not ours:
        raise ExportError(f"{folder} is not empty and holds no bundle: choose another folder")
    if not force:
        raise ExportError(f"{folder} already holds a bundle: force=True or --force replaces it")
    if names - ours:
        raise ExportError(
            f"{folder} also holds {min(names - ours)}, which is no part of its bundle: move it away first"
        )


def put_in_place(files: Mapping[str, bytes], manifest: Manifest, folder: Path, force: bool) -> None:
    """Write all files and then the manifest, and move them into place together: a reader sees none or all."""
    folder = Path(os.path.realpath(folder))
    mark = uuid4().hex
    fresh, old = (folder.with_name(f".{folder.name}.{mark}.{kind}") for kind in ("tmp", "old"))
    try:
        fresh.mkdir(parents=True)
        for name, data in files.items():
            write_atomically(fresh / name, data)
        manifest.write(fresh)
        sync_folder(fresh)
        check_target(folder, force)
        if folder.exists() and any(folder.iterdir()):
            os.rename(folder, old)
        os.rename(fresh, folder)
        sync_folder(folder.parent)
    except (OSError, CheckpointError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"cannot write the bundle to {folder}: {reason}") from error
    finally:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
    _remove_stale(folder)


def _bundle_files(folder: Path) -> set[str]:
    """Return the names of the files of the bundle in a folder; none where it holds no bundle."""
    try:
        values = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return set()
    if not isinstance(values, dict) or not {"schema", "rejector", "files"} <= set(values):
        return set()
    return {MANIFEST, SIGNATURE, *values["files"]} if isinstance(values["files"], dict) else set()


def _remove_stale(folder: Path) -> None:
    for left in folder.parent.iterdir():
        ours = left.name.startswith(f".{folder.name}.") and left.suffix in (".tmp", ".old")
        with suppress(OSError):  # another export may be removing it too
            if ours and time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)


def sign_bundle(folder: str | Path, key: str | Path) -> Path:
    """Sign a bundle with the private key in a file, once its manifest and the files that are there fit together.

    Returns:
        The file of the signature, which belongs beside the manifest wherever that is copied.
    """
    check_files(folder)
    return write_signature(folder, read_whole(Path(folder) / MANIFEST), key)


def check_files(folder: str | Path, verify_key: bytes | None = None) -> tuple[Manifest, list[str]]:
    """Check the manifest, its signature where a key is given, and the files of either side that are there."""
    manifest = Manifest.read(folder, verify_key)
    there = [name for name in manifest.files if (Path(folder) / name).exists()]
    for name in there:
        read_file(folder, manifest, name)
    return manifest, there
