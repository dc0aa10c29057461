"""``l2h recalibrate``: a bundle whose calibration follows the field."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from l2h.cli.options import AsJson
from l2h.cli.output import make_console, make_table, print_json, print_line

if TYPE_CHECKING:
    from l2h.recalibration import Recalibration

_TITLES = {"log_loss": "log-loss", "calibration_error": "calibration error", "risk": "risk"}


def recalibrate(
    bundle: Annotated[Path, Argument(help="The bundle's folder; the one that made the pairs.")],
    audits: Annotated[
        list[Path], Option("--from", "-f", help="A folder of audit files, or a file; repeat for several devices.")
    ],
    out: Annotated[Path, Option("--out", "-o", help="The folder of the new bundle; it appears in one piece.")],
    since: Annotated[str | None, Option(help="Only pairs of the last 30d, 12h, ... (default: all)")] = None,
    sign_key: Annotated[
        Path | None, Option("--key", "-k", help="Sign the new bundle with this key (l2h sign key).")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the bundle that is in the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a new bundle from a bundle and audited pairs: new scales, shifts and thresholds, never new weights.

    Before and after are shown on pairs that the fit did not see. Nothing is written where after is not clearly better,
    or where there are too few pairs. Devices take the new bundle over while they run: edge.reload(FOLDER).

    Example: [bold]l2h recalibrate bundles/digits --from audits/ --out bundles/digits-2[/]

    Example: [bold]l2h recalibrate bundles/digits --from cam-1/ --from cam-2/ --since 30d --out bundles/digits-2[/]
    """
    from l2h.bundle.signing import SIGNATURE
    from l2h.bundle.writing import check_target, sign_bundle
    from l2h.limits import RateLimit
    from l2h.recalibration import recalibrate as fit

    check_target(out, force)
    age = None if since is None else RateLimit(1, per=since).per
    found = fit(bundle, audits, since=None if age is None else time.time() - age)
    if not as_json:
        _print(found)
    manifest = None if dry_run else found.write(out, force=force)
    if manifest is not None and sign_key is not None:
        sign_bundle(out, sign_key)
    if as_json:
        print_json({**found.as_dict(), "out": None if manifest is None else str(out)})
    elif manifest is not None:
        print_line(f"{out}: {manifest.name}, version {manifest.version}; edge.reload({str(out)!r}) takes it over")
        if sign_key is None and (bundle / SIGNATURE).exists():
            print_line(f"{bundle} is signed and {out} is not yet: l2h sign bundle {out} --key FILE")


def _print(found: Recalibration) -> None:
    from l2h.recalibration import CONFIDENCE, LABELS

    said = found.as_dict()
    print_line(
        f"{found.folder}: version {found.manifest.version}, {found.pairs} pairs, {found.audits} of them audits, "
        f"{found.labelled} with a label"
    )
    for line in found.left_out:
        print_line(line)
    table = make_table(
        ("answerer", "scale", "shift", "new scale", "new shift"), right=("scale", "shift", "new scale", "new shift")
    )
    for name, each in said["platt"].items():
        new = [f"{value:.3f}" for value in each["after"]] if each["refitted"] else ["kept", "kept"]
        table.add_row(name, *(f"{value:.3f}" for value in each["before"]), *new)
    make_console().print(table)
    figures = ("before", "after", "change")
    table = make_table(("on held-out pairs", *figures, f"{CONFIDENCE:.0%} interval"), right=figures)
    for name, change in found.changes.items():
        span = f"{change.interval.low:+.4f} to {change.interval.high:+.4f}"
        difference = f"{change.interval.difference:+.4f}"
        table.add_row(_TITLES[name], f"{change.before:.4f}", f"{change.after:.4f}", difference, span)
    make_console().print(table)
    if not found.by_labels:
        print_line(
            "Judged by agreement with the server, whose answers the risk takes as right. A server that became worse "
            f"shows only with labels (edge.feedback), of {LABELS} pairs or more."
        )
    kept = "the old ones, since too few pairs stand for equally many inputs"
    print_line(f"samples for thresholds: {kept if found.scores is None else len(found.scores)}")
