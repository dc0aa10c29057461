"""Keys in a JSON file, which ``l2h keys`` changes and running servers follow."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from l2h.errors import CheckpointError
from l2h.files import read_json, write_atomically
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.keylist import KeyList, parse_key
from l2h.serving.errors import KeyStoreError
from l2h.serving.process.watch import Signature, signature

SCHEMA = 1
#: The signature of no file, nor of a missing one.
_NEVER: Signature = (0, 0, 0, 0)


class KeyFile(KeyList):
    """The :class:`~l2h.serving.accounts.store.KeyStore` of one host.

    Every change replaces the file as a whole; the first key makes it, readable by its owner alone.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._seen: Signature = _NEVER

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
        keys = [parse_key(record) for record in content["keys"]]
        if len({key.id for key in keys}) < len(keys):
            raise KeyStoreError(f"{self._path} holds an id twice")
        return keys

    def refresh(self) -> int | None:
        now = signature(self._path)
        if now == self._seen:
            return None
        before, self._seen = self._seen, now
        try:
            return self.know(self.read())
        except KeyStoreError as error:
            if isinstance(error.__cause__, OSError):  # the same file may be readable the next time
                self._seen = before
            raise

    def changing(self, make: bool) -> AbstractContextManager[list[Key]]:
        return self._locked(lambda: self.read() if self._path.exists() or not make else [])

    def replace(self, keys: list[Key]) -> None:
        """Write these keys, whatever the file holds."""
        with self._locked(list):
            self.write(keys, [])

    @contextmanager
    def _locked(self, read: Callable[[], list[Key]]) -> Iterator[list[Key]]:  # a new file is for the owner alone
        before = os.umask(0o077)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield read()
            finally:
                os.close(folder)
        except OSError as error:
            raise KeyStoreError(f"cannot change {self._path}: {error.strerror or error}") from error
        finally:
            os.umask(before)

    def write(self, keys: list[Key], changed: list[Key]) -> None:
        text = json.dumps({"schema": SCHEMA, "keys": [key.as_dict() for key in keys]}, indent=2) + "\n"
        try:
            # The server may run as another user than who changes the file, and must still be able to read it.
            write_atomically(self._path, text.encode(), like=self._path.stat() if self._path.exists() else None)
        except CheckpointError as error:
            raise KeyStoreError(str(error)) from error
