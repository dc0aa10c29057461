"""What stores of keys have in common: how a key is added and changed, and the record that it is kept as."""

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from l2h.serving.accounts.key import ID_LENGTH, Key, Quota, Rate, new_key
from l2h.serving.errors import AllowanceError, KeyStoreError

_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_HASH = re.compile(r"[0-9a-f]{64}")


class KeyList(ABC):
    """Keys at a place that messages name; :meth:`changing` lets one change through at a time."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._keys: dict[str, Key] = {}  # those that :meth:`find` knows

    @abstractmethod
    def read(self) -> list[Key]:
        """Return all keys; see :class:`~l2h.serving.accounts.store.KeyStore`."""

    @abstractmethod
    def changing(self, make: bool) -> AbstractContextManager[list[Key]]:
        """Give all keys to whoever changes them, and hold the lock until then; ``make`` makes a place for the first."""

    @abstractmethod
    def write(self, keys: list[Key], changed: list[Key]) -> None:
        """Write all keys, of which some are new or were changed; called inside of :meth:`changing`."""

    def add(
        self, name: str, *, quota: Quota | None = None, rate: Rate | None = None, admin: bool = False
    ) -> tuple[Key, str]:
        key, text = new_key(name, quota=quota, rate=rate, admin=admin)
        with self.changing(make=True) as keys:
            if any(other.name == name and other.enabled for other in keys):
                raise KeyStoreError(
                    f"{self._place} has a key named {name!r}: choose another name, or revoke that one first"
                )
            self.write([*keys, key], [key])
        return key, text

    def change(self, who: str, **changes: Any) -> list[Key]:
        with self.changing(make=False) as keys:
            changed = {key.id: replace(key, **changes) for key in keys if key.enabled and who in (key.id, key.name)}
            if not changed:
                raise KeyStoreError(
                    f"{self._place} has no key in use with the name or id {who!r}: `l2h keys list` shows them"
                )
            self.write([changed.get(key.id, key) for key in keys], list(changed.values()))
        return list(changed.values())

    def find(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    def know(self, keys: list[Key]) -> int:
        """Take over the keys that :meth:`find` knows; return how many are in use."""
        self._keys = {key.id: key for key in keys}
        return sum(key.enabled for key in keys)


def parse_key(record: Any) -> Key:
    """Return the key that ``Key.as_dict`` describes; a ``KeyStoreError`` says what is wrong with it."""
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
