"""A snapshot: its manifest, plain values that say which bytes it has; the answers as bytes; and what can be wrong."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import L2HError
from l2h.files import open_regular, parse_json

SCHEMA = 1
#: ``weights``: the server model as safetensors bytes. ``answers``: one bit per training sample, packed.
KINDS = ("weights", "answers")
#: The longest manifest or identity, in bytes.
JSON_LIMIT = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ExchangeError(L2HError, RuntimeError):
    """Raised when an exchange cannot be set up: a port in use, an empty token, a bad address."""


class SnapshotError(ExchangeError, ValueError):
    """Raised when a snapshot cannot be published, or its manifest or bytes are damaged."""


class IdentityError(ExchangeError, ValueError):
    """Raised when a publisher belongs to another training: its classes, input shape or data are not ours."""


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
        """Return the manifest as JSON; :class:`SnapshotError` where ``meta`` is not plain or too long."""
        try:
            data = json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise SnapshotError(f"the metadata of a snapshot must be plain values: {error}") from error
        if len(data) > JSON_LIMIT:
            raise SnapshotError(f"a manifest of {len(data)} bytes is over {JSON_LIMIT}: put less into meta")
        return data

    @classmethod
    def from_json(cls, data: bytes) -> Snapshot:
        """Read a manifest that may come from anybody; :class:`SnapshotError` names the first field that is wrong."""
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


def pack_answers(right: npt.ArrayLike) -> bytes:
    """Pack booleans, (n,), one bit each, in the order of the samples: ``ceil(n / 8)`` bytes.

    >>> pack_answers([True, False, True]).hex()
    'a0'
    """
    bits = np.asarray(right)
    if bits.dtype != np.bool_ or bits.ndim != 1:
        raise SnapshotError(f"answers must be a vector of booleans, got {bits.dtype} of shape {bits.shape}")
    return np.packbits(bits).tobytes()


def unpack_answers(data: bytes, n: int) -> npt.NDArray[np.bool_]:
    """Return the booleans (n,) that :func:`pack_answers` packed for ``n`` samples.

    >>> unpack_answers(bytes([0xA0]), 3).tolist()
    [True, False, True]
    """
    if n < 0 or len(data) != (n + 7) // 8:
        raise SnapshotError(f"{len(data)} bytes cannot hold the answers on {n} samples: expected {(n + 7) // 8}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.bool_)
    if bits[n:].any():
        raise SnapshotError(
            f"the bits after the last of {n} answers are not zero: packed for another number of samples"
        )
    return bits[:n]


def check_kind(kind: str) -> None:
    """Raise :class:`SnapshotError` where ``kind`` is not one of :data:`KINDS`."""
    if kind not in KINDS:
        raise SnapshotError(f"no kind of snapshot is called {kind!r}: use one of {', '.join(KINDS)}")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, which may come from anybody; :class:`SnapshotError` where there is none."""
    try:
        values = parse_json(data)
    except ValueError as error:
        raise SnapshotError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SnapshotError(f"a JSON {type(values).__name__} where an object was expected")
    return values


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(values: dict[str, Any], name: str, least: int) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        raise SnapshotError(f"a manifest whose {name} is {value!r}: expected a whole number from {least}")
    return value
