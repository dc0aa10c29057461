"""``l2h audit``: what the pairs that devices keep show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from l2h.cli.options import AsJson
from l2h.cli.output import log, make_console, make_table, print_json, print_line, print_pairs

if TYPE_CHECKING:
    from l2h.audits import AuditReport


def report(
    sources: Annotated[list[Path], Argument(help="Folders that EdgeClient(audits=...) wrote, or single files.")],
    bundle: Annotated[
        str | None, Option(help="The version of the bundle whose pairs count. (default: that of the newest file)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether devices are still right to keep what they keep: from pairs of local and remote answers.

    Without labels: how often device and server agree where the device answers, what asking saves, and whether the heads
    can still be calibrated. With labels (edge.feedback): the realised risk beside the promise, and a test of every
    head. Intervals are of 95%.

    Example: [bold]l2h audit report audits/[/]

    Example: [bold]l2h audit report cam-7/audits cam-8/audits --json > audit.json[/]
    """
    from l2h.audits import audit_report
    from l2h.audits.report import day

    found = audit_report(*sources, bundle=bundle)
    for line in found.left_out:
        log.warning("%s", line)
    if as_json:
        print_json(found.as_dict())
        return
    unanswered = ", ".join(f"{reason} {count}" for reason, count in found.unanswered.items())
    pairs = {
        "bundle": f"{found.name} {found.bundle}",
        "devices": ", ".join(found.devices) or "without names",
        "pairs": f"{found.audited} asked by chance, {found.asked} asked anyway, {found.labels} with a label",
        "without an answer": unanswered or "none",
        "stand for": f"about {found.inputs:.0f} inputs, {day(found.since)} to {day(found.until)} UTC",
        "audits cost": f"{found.audit_cost:.3g} per input",
    }
    print_pairs(", ".join(map(str, sources)), pairs)
    make_console().print(_figures(found))
    if found.heads:
        make_console().print(_heads(found))
    for sentence in found.sentences():
        print_line(sentence)


def _figures(found: AuditReport) -> Any:
    table = make_table(("per input", "estimate", "95% interval", "pairs"), right=("estimate", "95% interval", "pairs"))
    risk = found.risk
    rows = {
        "asked": found.asked_share,
        "agree where kept": found.agreement["kept"],
        "agree where asked": found.agreement["asked"],
        **{f"agree where kept, {name}": estimate for name, estimate in found.servers.items()},
        "risk, if the heads are calibrated": risk.stated,
        "risk, by labels": risk.realised,
        "risk of never asking, by labels": risk.never,
        "risk of always asking, by labels": risk.always,
    }
    for rule, saved in found.saved.items():
        rows |= {
            f"saved against {rule} asking, at least": saved.least,
            f"saved against {rule} asking, at most": saved.most,
            f"saved against {rule} asking, if the heads are calibrated": saved.stated,
            f"saved against {rule} asking, by labels": saved.realised,
        }
    for name, estimate in rows.items():
        if estimate is not None:
            ends = f"{estimate.low:.4f} to {estimate.high:.4f}"
            table.add_row(name, f"{estimate.value:.4f}", ends, str(estimate.n))
    return table


def _heads(found: AuditReport) -> Any:
    columns = ("head", "stated", "right", "95% interval", "calibration error", "p-value", "labels")
    table = make_table(columns, right=columns[1:])
    for name, check in found.heads.items():
        right = check.observed
        ends = f"{right.low:.4f} to {right.high:.4f}"
        figures = [f"{value:.4f}" for value in (check.stated, right.value)]
        table.add_row(name, *figures, ends, f"{check.error:.4f}", f"{check.p_value:.2g}", str(check.pairs))
    return table


COMMANDS = {"report": report}
