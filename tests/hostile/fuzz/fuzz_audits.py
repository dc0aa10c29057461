"""Audit files: any lines are a report of finite numbers or an :class:`AuditError`.

An input is a list of JSON, of which each item becomes a line; what is no list is the file itself.
"""

from __future__ import annotations

import json
from contextlib import suppress

from fuzzing import at_most, scratch
from fuzzing import mutate_json as mutate

from l2h.audits import AuditError, audit_report

__all__ = ["check", "mutate"]

PATH = scratch() / "audit-1.jsonl"


def check(data: bytes) -> None:
    try:
        items = json.loads(data)
        lines = [json.dumps(item).encode() for item in items]
    except (ValueError, RecursionError, TypeError):
        lines = [data]
    PATH.write_bytes(b"\n".join(lines) + b"\n")
    with at_most(512 * len(data) + 2**21), suppress(AuditError):
        found = audit_report(PATH)
        json.dumps(found.as_dict(), allow_nan=False)
