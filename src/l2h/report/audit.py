"""A report on audits as tables and as a page."""

from __future__ import annotations

from pathlib import Path

from l2h.audits import AuditReport
from l2h.report.common.table import Cell, TextTable, headings, texts


def write_audit(found: AuditReport, path: Path) -> Path:
    """Write what the pairs of audits show as a page of one file."""
    from l2h.report.common.page import write_html  # the tables need less than a page does

    return write_html(
        path,
        "audit.html.j2",
        title=f"Audit of {found.name}",
        about=found.about().items(),
        sentences=list(found.sentences()),
        tables=audit_tables(found),
        left_out=found.left_out,
    )


def audit_tables(found: AuditReport) -> list[TextTable]:
    """Return every estimate, what the heads allow, and the heads beside labels, as far as there are any."""
    return [table for table in (_figures(found), _groups(found), _heads(found)) if table.rows]


def _figures(found: AuditReport) -> TextTable:
    rows = [
        texts(name, f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}", f"{one.n}")
        for name, one in found.figures().items()
    ]
    note = (
        "Means over all inputs. What is saved at least and at most holds whatever the labels are. Labels stand for all "
        "pairs of their kind, kept or asked."
    )
    return TextTable("Figures", headings("per input", "estimate", "95% interval", "pairs"), rows, note)


def _groups(found: AuditReport) -> TextTable:
    rows = []
    for one in found.disagreement:
        outside = not one.least <= one.observed <= one.most
        shares = [f"{100 * value:.1f}%" for value in (one.stated, one.least, one.most)]
        rows.append(texts(*shares, Cell(f"{100 * one.observed:.1f}%", bad=outside), f"{one.pairs}"))
    note = (
        f"p = {found.p_value or 0:.2g} that pairs leave the bounds so far by chance, over all groups. Answers that are "
        "right with p and with q differ at least |p - q| and at most (1 - p) + (1 - q) of the time."
    )
    columns = headings("device is right, as stated", "differ at least", "at most", "differ", "pairs")
    return TextTable("Do device and server differ as the heads allow?", columns, rows, note)


def _heads(found: AuditReport) -> TextTable:
    rows = []
    for name, one in found.heads.items():
        right = f"{one.observed.value:.4f} ({one.observed.low:.4f} to {one.observed.high:.4f})"
        figures = f"{one.error:.4f}", f"{one.p_value:.2g}", f"{one.pairs}"
        rows.append(texts(name, f"{one.stated:.4f}", right, *figures))
    note = "The p-value is of the hypothesis that a head needs no other scale and shift."
    columns = headings("head", "stated", "right (95% interval)", "calibration error", "p-value", "labels")
    return TextTable("The heads beside labels", columns, rows, note)
