"""Ids of requests: the caller's, if it is sane, or one of ours."""

from __future__ import annotations

import itertools
import re
import secrets

_SANE = re.compile(rb"[\x21-\x7e]{1,128}")
_prefix = secrets.token_hex(8)
_numbers = itertools.count(1)


def clean_id(value: bytes | None) -> str | None:
    """An id that was sent, if it has 1 to 128 printable ASCII characters without spaces; else None."""
    if value is None or _SANE.fullmatch(value) is None:
        return None
    return value.decode("ascii")


def new_id() -> str:
    """An id that no other process and no later start will give."""
    return f"{_prefix}-{next(_numbers):x}"
