"""``l2h runs``: the runs that lie in a folder, or two of them side by side."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument

from l2h.cli.options import AsJson
from l2h.cli.output import make_console, make_table, print_json, print_line
from l2h.errors import RunError, warn


def runs(
    folders: Annotated[
        list[Path] | None,
        Argument(metavar="FOLDER", help="Folders to look into. (default: runs) Two run folders are compared."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder, the oldest first, or compare two runs: settings that differ, and their figures.

    Example: [bold]l2h runs runs/cifar10[/]

    Example: [bold]l2h runs runs/mine runs/other[/]
    """
    from l2h.experiments.listing import compare_runs, find_runs

    folders = folders or [Path("runs")]
    found = [list(find_runs(folder)) for folder in folders]
    listed = [run for inside in found for run in inside]
    empty = ", ".join(str(folder) for folder, inside in zip(folders, found, strict=True) if not inside)
    if not listed:
        raise RunError(f"no runs in {empty}: l2h train --out FOLDER makes one")
    if empty:
        warn(f"no runs in {empty}: what l2h evaluate --out writes is none")
    if len(folders) == 2 and [run.folder for run in listed] == folders:
        compared = compare_runs(*listed)
        print_json(compared) if as_json else _print_two(compared)
        return
    rows = sorted((run.as_dict() for run in listed), key=lambda row: row["when"])
    print_json(rows) if as_json else _print_list(rows)


def _print_list(rows: list[dict[str, Any]]) -> None:
    right = ("c_1", "c_e", "risk", "sent")
    table = make_table(("run", "data", "client", "server", *right, "when"), right=right)
    table.columns[0].overflow = "fold"
    for row in rows:
        prices = [row["costs"]] if row["costs"] else list((row["prices"] or {}).values())
        costs = ["/".join(_text(one.get(name)) for one in prices) or _text(None) for name in ("c_1", "c_e")]
        sent = row["reject_rate"]
        figures = [*costs, _text(row["risk"]), _text(sent if sent is None else f"{sent:.1%}")]
        when = datetime.fromisoformat(row["when"]).strftime("%Y-%m-%d %H:%M")
        names = [_text(row[name]) for name in ("data", "client", "server")]
        table.add_row(escape(row["run"]), *names, *figures, when if row["finished"] else f"{when}, unfinished")
    make_console().print(table)


def _print_two(compared: dict[str, Any]) -> None:
    names = [escape(row["run"]) for row in compared["runs"]]
    for title, rows, none in (
        ("Settings that differ", compared["settings"], "none"),
        ("Figures", compared["metrics"], "none: neither run was evaluated"),
    ):
        if not rows:
            print_line(f"{title}: {none}")
            continue
        table = make_table((title, *names), right=names)
        for name, values in rows.items():
            table.add_row(name, *map(_text, values))
        make_console().print(table)
    first, second = (row["costs"] or row["prices"] for row in compared["runs"])
    if first and second and first != second:
        print_line(
            "The risks were measured at different prices: l2h evaluate RUN --c-e ... --c-1 ... gives both at one."
        )


def _text(value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".") if abs(value) >= 0.001 or not value else f"{value:g}"
    if isinstance(value, dict):
        value = [f"{name}={one}" for name, one in value.items()]
    return ", ".join(map(_text, value)) if isinstance(value, list) else escape(str(value))
