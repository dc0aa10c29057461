"""Keys in a JSON file, which ``l2h keys`` changes and running servers follow."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2h.errors import CheckpointError
from l2h.files import read_json, write_atomically
from l2h.serving.accounts.key import ID_LENGTH, Key, Quota, Rate, new_key
from l2h.serving.errors import AllowanceError, KeyStoreError
from l2h.serving.process.watch import Signature, signature

SCHEMA = 1
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_HASH = re.compile(r"[0-9a-f]{64}")
#: The signature of no file, nor of a missing one.
_NEVER: Signature = (0, 0, 0, 0)


class KeyFile:
    """The :class:`~l2h.serving.accounts.store.KeyStore` of one host.

    Every change replaces the file as a whole; the first key makes it, readable by its owner alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Signature = _NEVER
        self._keys: dict[str, Key] = {}

    def read(self) -> list[Key]:
        try:
            content = read_json(self._path)
        except FileNotFoundError:
            raise KeyStoreError(
                f"there is no key file {self._path}: `l2h keys add NAME --file {self._path}` makes one"
            ) from None
        except (OSError, ValueError) as error:
            raise KeyStoreError(f"cannot read the key file {self._path}: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
            raise KeyStoreError(f"{self._path} is no key file: it needs a list 'keys'")
        if content.get("schema") != SCHEMA:
            raise KeyStoreError(
                f"{self._path} has schema {content.get('schema')!r}; this version of L2H reads {SCHEMA}"
            )
        keys = [_parse(record) for record in content["keys"]]
        if len({key.id for key in keys}) < len(keys):
            raise KeyStoreError(f"{self._path} holds an id twice")
        return keys

    def add(
        self, name: str, *, quota: Quota | None = None, rate: Rate | None = None, admin: bool = False
    ) -> tuple[Key, str]:
        key, text = new_key(name, quota=quota, rate=rate, admin=admin)
        with self._locked():
            keys = self.read() if self._path.exists() else []
            if any(other.name == name and other.enabled for other in keys):
                raise KeyStoreError(
                    f"{self._path} has a key named {name!r}: choose another name, or revoke that one first"
                )
            self._write([*keys, key])
        return key, text

    def change(self, who: str, **changes: Any) -> list[Key]:
        with self._locked():
            keys = self.read()
            changed = {key.id: replace(key, **changes) for key in keys if key.enabled and who in (key.id, key.name)}
            if not changed:
                raise KeyStoreError(
                    f"{self._path} has no key in use with the name or id {who!r}: `l2h keys list` shows them"
                )
            self._write([changed.get(key.id, key) for key in keys])
        return list(changed.values())

    def refresh(self) -> int | None:
        now = signature(self._path)
        if now == self._seen:
            return None
        before, self._seen = self._seen, now
        try:
            self._keys = {key.id: key for key in self.read()}
        except KeyStoreError as error:
            if isinstance(error.__cause__, OSError):  # the same file may be readable the next time
                self._seen = before
            raise
        return sum(key.enabled for key in self._keys.values())

    def find(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time, and a new file for the owner alone."""
        before = os.umask(0o077)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise KeyStoreError(f"cannot change {self._path}: {error.strerror or error}") from error
        finally:
            os.umask(before)

    def _write(self, keys: list[Key]) -> None:
        text = json.dumps({"schema": SCHEMA, "keys": [key.as_dict() for key in keys]}, indent=2) + "\n"
        try:
            # The server may run as another user than who changes the file, and must still be able to read it.
            write_atomically(self._path, text.encode(), like=self._path.stat() if self._path.exists() else None)
        except CheckpointError as error:
            raise KeyStoreError(str(error)) from error


def _parse(record: Any) -> Key:
    if not isinstance(record, dict):
        raise KeyStoreError(f"a key is an object, not {record!r}")
    if not all(isinstance(record.get(name), str) for name in ("id", "name", "sha256")):
        raise KeyStoreError(f"key {record.get('id')!r} needs id, name and sha256 as text")
    if not _ID.fullmatch(record["id"]) or not _HASH.fullmatch(record["sha256"]):
        raise KeyStoreError(f"key {record['id']!r}: the id has 12 hexadecimal digits, the hash 64")
    enabled, admin = record.get("enabled", True), record.get("admin", False)
    if not isinstance(enabled, bool) or not isinstance(admin, bool):
        raise KeyStoreError(f"key {record['id']!r}: enabled and admin are true or false")
    quota, rate = record.get("quota"), record.get("rate")
    try:
        quota = None if quota is None else Quota.parse(str(quota))
        rate = None if rate is None else Rate.parse(str(rate), record.get("burst"))
    except AllowanceError as error:
        raise KeyStoreError(f"key {record['id']}: {error}") from error
    created = str(record.get("created", ""))
    return Key(record["id"], record["name"], record["sha256"], created, enabled, admin, quota, rate)
