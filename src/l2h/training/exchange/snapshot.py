"""The manifest of a snapshot: plain values that say which bytes a snapshot has."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from l2h.training.exchange.errors import SnapshotError

SCHEMA = 1
#: ``weights``: the server model as safetensors bytes. ``answers``: one bit per training sample, packed.
KINDS = ("weights", "answers")
#: The longest manifest or identity, in bytes.
JSON_LIMIT = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Snapshot:
    """The manifest of one snapshot."""

    kind: str  # one of :data:`KINDS`
    version: int  # counts up from 1 for each kind of a store
    step: int  # the publisher's training step
    size: int  # the number of bytes
    sha256: str  # the SHA-256 of the bytes, in hexadecimal
    meta: dict[str, Any]  # plain values of the publisher's choice
    time: float  # when it was published, in seconds since 1970 by the publisher's clock

    def to_json(self) -> bytes:
        """Return the manifest as JSON.

        Raises:
            SnapshotError: ``meta`` holds values that JSON cannot hold, or more than a manifest may.
        """
        try:
            data = json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise SnapshotError(f"the metadata of a snapshot must be plain values: {error}") from error
        if len(data) > JSON_LIMIT:
            raise SnapshotError(f"a manifest of {len(data)} bytes is over {JSON_LIMIT}: put less into meta")
        return data

    @classmethod
    def from_json(cls, data: bytes) -> Snapshot:
        """Read a manifest that may come from anybody, and check every field.

        Raises:
            SnapshotError: it is not a manifest; the message names the field.
        """
        values = parse_object(data)
        schema = values.get("schema")
        if schema != SCHEMA:
            raise SnapshotError(
                f"a manifest of schema {schema!r}; this version reads {SCHEMA}: update l2h on both sides"
            )
        kind, digest, meta, when = (values.get(name) for name in ("kind", "sha256", "meta", "time"))
        if kind not in KINDS:
            raise SnapshotError(f"a manifest of the kind {kind!r}: expected one of {', '.join(KINDS)}")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise SnapshotError(f"a manifest whose sha256 is {digest!r}")
        if not isinstance(meta, dict):
            raise SnapshotError(f"a manifest whose meta is {type(meta).__name__}, not an object")
        if isinstance(when, bool) or not isinstance(when, int | float) or not math.isfinite(when):
            raise SnapshotError(f"a manifest whose time is {when!r}")
        version, step, size = (_whole(values, *field) for field in (("version", 1), ("step", 0), ("size", 1)))
        return cls(str(kind), version, step, size, digest, meta, float(when))


def check_kind(kind: str) -> None:
    """Raise :class:`SnapshotError` where ``kind`` is not one of :data:`KINDS`."""
    if kind not in KINDS:
        raise SnapshotError(f"no kind of snapshot is called {kind!r}: use one of {', '.join(KINDS)}")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, which may come from anybody.

    Raises:
        SnapshotError: ``data`` is not JSON, or not an object.
    """
    try:
        values = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SnapshotError(f"a JSON {type(values).__name__} where an object was expected")
    return values


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(values: dict[str, Any], name: str, least: int) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        raise SnapshotError(f"a manifest whose {name} is {value!r}: expected a whole number from {least}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
