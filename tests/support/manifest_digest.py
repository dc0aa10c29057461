"""The digest of a manifest's text, worked out a second time: for manifests that a test changes."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any


def with_digest(values: dict[str, Any]) -> str:
    """The text of a manifest with its own digest, as whoever changes it by hand can write it."""
    blank = "0" * 64
    text = json.dumps({**values, "digest": blank})
    before, after = text.rsplit(blank, 1)
    return before + sha256(text.encode()).hexdigest() + after
