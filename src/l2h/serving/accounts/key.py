"""API keys: ``l2h_<id>_<secret>``, of which a store holds a hash and never the key itself.

The id is public and finds the record. The secret has 256 random bits, so a plain SHA-256 of the key is as good as a
slow hash: there is nothing to guess.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from l2h.serving.accounts.allowance import Quota, Rate
from l2h.serving.errors import KeyStoreError

PREFIX = "l2h"
ID_LENGTH = 12


@dataclass(frozen=True)
class Key:
    """What a store knows of a key."""

    id: str  # public; the ledger and the logs show it
    name: str  # whose it is
    sha256: str  # of the whole key
    created: str  # when, ISO
    enabled: bool = True  # false once revoked
    admin: bool = False  # may read the metrics
    quota: Quota | None = None  # inputs in a period, or None for no bound
    rate: Rate | None = None  # inputs per second, or None for no bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
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


#: Who is charged where the server asks for no keys.
ANONYMOUS = Key("anonymous", "anonymous", "", "")


def new_key(name: str, *, quota: Quota | None, rate: Rate | None, admin: bool) -> tuple[Key, str]:
    """Make a key; return its record and the key itself.

    Raises:
        KeyStoreError: the name is empty, too long or not printable.
    """
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise KeyStoreError(f"a key's name has 1 to 100 printable characters; got {name!r}")
    key_id = secrets.token_hex(ID_LENGTH // 2)
    text = f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    hashed = hashlib.sha256(text.encode()).hexdigest()
    return Key(key_id, name, hashed, now, admin=admin, quota=quota, rate=rate), text
