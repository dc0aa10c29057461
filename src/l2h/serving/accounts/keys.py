"""The key file: who may ask, and how much. It holds hashes, never keys.

A key reads ``l2h_<id>_<secret>``. The id is public and finds the record; the secret has 256 random bits, so that a
plain SHA-256 of the key is as good as a slow hash: there is nothing to guess.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from l2h.errors import CheckpointError
from l2h.files import write_atomically
from l2h.serving.accounts.allowance import Quota, Rate
from l2h.serving.errors import AllowanceError, KeyFileError

SCHEMA = 1
PREFIX = "l2h"
_ID = re.compile(r"[0-9a-f]{12}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """One record of the file.

    Attributes:
        id: public; what the ledger and the logs say.
        name: whose it is.
        sha256: of the whole key.
        created: when, ISO.
        enabled: false once revoked.
        admin: may read the metrics.
        quota: count in a period, or None for no bound.
        rate: inputs a second, or None for no bound.
    """

    id: str
    name: str
    sha256: str
    created: str
    enabled: bool = True
    admin: bool = False
    quota: Quota | None = None
    rate: Rate | None = None

    @classmethod
    def from_dict(cls, values: Any) -> Key:
        """Read a record.

        Raises:
            KeyFileError: it is none.
        """
        if not isinstance(values, dict):
            raise KeyFileError(f"a key is an object, not {values!r}")
        enabled, admin = values.get("enabled", True), values.get("admin", False)
        if not all(isinstance(values.get(name), str) for name in ("id", "name", "sha256")):
            raise KeyFileError(f"key {values.get('id')!r} needs id, name and sha256 as text")
        if not _ID.fullmatch(values["id"]) or not _HASH.fullmatch(values["sha256"]):
            raise KeyFileError(f"key {values['id']!r}: the id has 12 hexadecimal digits, the hash 64")
        if not isinstance(enabled, bool) or not isinstance(admin, bool):
            raise KeyFileError(f"key {values['id']!r}: enabled and admin are true or false")
        quota, rate = values.get("quota"), values.get("rate")
        try:
            return cls(
                values["id"],
                values["name"],
                values["sha256"],
                str(values.get("created", "")),
                enabled,
                admin,
                None if quota is None else Quota.parse(str(quota)),
                None if rate is None else Rate.parse(str(rate), values.get("burst")),
            )
        except AllowanceError as error:
            raise KeyFileError(f"key {values['id']}: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """The record as it is written."""
        return {
            "id": self.id,
            "name": self.name,
            "sha256": self.sha256,
            "created": self.created,
            "enabled": self.enabled,
            "admin": self.admin,
            "quota": None if self.quota is None else str(self.quota),
            "rate": None if self.rate is None else f"{self.rate.per_second:.9f}".rstrip("0").rstrip(".") + "/s",
            "burst": None if self.rate is None else self.rate.burst,
        }


def hash_of(key: str) -> str:
    """What the file holds of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The records of a key file.

    Raises:
        KeyFileError: it is missing, cannot be read, or is no key file.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise KeyFileError(f"there is no key file {path}: `l2h keys add NAME --file {path}` makes one") from None
    except (OSError, ValueError) as error:
        raise KeyFileError(f"cannot read the key file {path}: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise KeyFileError(f"{path} is no key file: it needs a list 'keys'")
    if found.get("schema") != SCHEMA:
        raise KeyFileError(f"{path} has schema {found.get('schema')!r}; this version of L2H reads {SCHEMA}")
    keys = [Key.from_dict(one) for one in found["keys"]]
    if len({key.id for key in keys}) < len(keys):
        raise KeyFileError(f"{path} holds an id twice")
    return keys


def add_key(
    path: Path, name: str, *, quota: Quota | None = None, rate: Rate | None = None, admin: bool = False
) -> tuple[Key, str]:
    """Make a key; gives its record and the key itself, which is nowhere kept.

    Raises:
        KeyFileError: a key of that name is in use, or the file cannot be written.
    """
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise KeyFileError(f"a key's name has 1 to 100 printable characters; got {name!r}")
    with _changing(path):
        keys = read_keys(path) if path.exists() else []
        if any(key.name == name and key.enabled for key in keys):
            raise KeyFileError(f"{path} has a key named {name!r}: choose another name, or revoke that one first")
        id_ = secrets.token_hex(6)
        text = f"{PREFIX}_{id_}_{secrets.token_urlsafe(32)}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        key = Key(id_, name, hash_of(text), now, admin=admin, quota=quota, rate=rate)
        _write(path, [*keys, key])
    return key, text


def change_key(path: Path, who: str, **changes: Any) -> list[Key]:
    """Change fields of the keys of a name, or of the one of an id; gives them as they are now.

    ``enabled=False`` revokes a key, for good.

    Raises:
        KeyFileError: there is none in use, or the file cannot be written.
    """
    with _changing(path):
        keys = read_keys(path)
        changed = {key.id: replace(key, **changes) for key in keys if key.enabled and who in (key.id, key.name)}
        if not changed:
            raise KeyFileError(f"{path} has no key in use with the name or id {who!r}: `l2h keys list` shows them")
        _write(path, [changed.get(key.id, key) for key in keys])
    return list(changed.values())


def readable_by_all(path: Path) -> bool:
    """Whether people other than the owner and the group may read the file."""
    return bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """One change at a time, and a new file for the owner alone."""
    before = os.umask(0o077)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise KeyFileError(f"cannot change {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)


def _write(path: Path, keys: list[Key]) -> None:
    text = json.dumps({"schema": SCHEMA, "keys": [key.as_dict() for key in keys]}, indent=2) + "\n"
    try:
        # The server may run as another user than who changes the file, and must still be able to read it.
        write_atomically(path, text.encode(), like=path.stat() if path.exists() else None)
    except CheckpointError as error:
        raise KeyFileError(str(error)) from error
