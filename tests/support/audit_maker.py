"""Made audits of which the truth is known."""

from __future__ import annotations

from typing import Any

from l2h.audits import AuditHeader, AuditLog, AuditPair

CLASSES = ("a", "b", "c")


def header(**changes: Any) -> AuditHeader:
    values = {"bundle": "0123456789ab", "name": "made", "classes": CLASSES, "answerers": ("client", "server")}
    return AuditHeader(**values | {"local": 1, "platt": (((1.0, 0.0), (1.0, 0.0)),), "device": "cam-7"} | changes)


def pair(number: int, **changes: Any) -> AuditPair:
    values: dict[str, Any] = {"kind": "audit", "id": f"{number:016x}", "time": 1000.0 + number, "probability": 0.01}
    values |= {"reason": "not_worth_asking", "which": 0, "heads": (2.0, 3.0), "client": 0, "server": 0}
    return AuditPair(**values | {"by": "server", "costs": {"c_e": 0.1, "c_1": 1.0}} | changes)


def write(folder: Any, pairs: list[AuditPair], **changes: Any) -> AuditLog:
    """A log that has written these pairs below a header."""
    log = AuditLog(folder)
    log.begin(header(**changes))
    log.write(pairs)
    return log
