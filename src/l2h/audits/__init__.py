"""Audits: pairs of local and remote answers that a device keeps, and what they say without labels and with them."""

from l2h.audits.estimates import Estimate
from l2h.audits.lines import AuditError, AuditHeader, AuditPair
from l2h.audits.log import AuditLog
from l2h.audits.reading import AuditPairs, LeftOut, read_audits
from l2h.audits.report import AuditReport, audit_report

__all__ = [
    "AuditError",
    "AuditHeader",
    "AuditLog",
    "AuditPair",
    "AuditPairs",
    "AuditReport",
    "Estimate",
    "LeftOut",
    "audit_report",
    "read_audits",
]
