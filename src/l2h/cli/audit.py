"""``l2h audit``: what the pairs that devices keep show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from l2h.cli.options import AsJson
from l2h.cli.output import log, make_console, print_json, print_line, print_pairs


def report(
    sources: Annotated[list[Path], Argument(help="Folders that EdgeClient(audits=...) wrote, or single files.")],
    bundle: Annotated[
        str | None, Option(help="The version of the bundle whose pairs count. (default: that of the newest file)")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Also write it as a page: audit.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether devices are still right to keep what they keep: from pairs of local and remote answers.

    Without labels: how often device and server agree where the device answers, what asking saves, and whether the heads
    can still be calibrated. With labels (edge.feedback): the realised risk beside the promise, and a test of every
    head. Intervals are of 95%.

    Example: [bold]l2h audit report audits/ --out audit.html[/]

    Example: [bold]l2h audit report cam-7/audits cam-8/audits --json > audit.json[/]
    """
    from l2h.audits import audit_report
    from l2h.report import audit_tables

    found = audit_report(*sources, bundle=bundle)
    for line in found.left_out:
        log.warning("%s", line)
    if out is not None:
        from l2h.report import write_audit

        log.info("The page: %s", write_audit(found, out))
    if as_json:
        print_json(found.as_dict())
        return
    print_pairs(", ".join(map(str, sources)), found.about())
    for table in audit_tables(found):
        make_console().print(table)
    for sentence in found.sentences():
        print_line(sentence)


COMMANDS = {"report": report}
