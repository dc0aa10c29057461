"""``l2h ledger``: what a server has charged, and old rows summed up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from l2h.cli.output import make_console, make_table, print_json, print_line, print_result
from l2h.errors import SettingsError

Ledger = Annotated[Path, Option("--ledger", help="The file that `l2h serve` writes.")]
Accounts = Annotated[
    str | None, Option(help="A PostgreSQL database in place of the files: postgresql://USER@HOST/DATABASE.")
]
DEFAULT = Path("ledger.db")
#: The key file that gives names, where it is there.
KEYS = Path("keys.json")
KeyFile = Annotated[
    Path | None, Option("--keys", help="The key file, for the names of keys. (default: keys.json, if there is one)")
]


def report(
    ledger: Ledger = DEFAULT,
    by: Annotated[
        list[str] | None, Option(help="key, day, month, model or version; may be repeated. (default: key)")
    ] = None,
    since: Annotated[str | None, Option(help="The first day that counts (UTC): 2026-11-01.")] = None,
    until: Annotated[str | None, Option(help="The day before which to stop: 2026-12-01.")] = None,
    keys: KeyFile = None,
    accounts: Accounts = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a list of rows.")] = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Sum up what was charged: requests, inputs and units, by key, day, month, model or version.

    Rows that were pruned are in the sums. "Undelivered" are requests that were charged and whose caller had gone before
    the answer left; "unconfirmed" are those of which nobody knows, since the server was killed or has just sent them.

    Example: [bold]l2h ledger report --by key --by day[/]

    Example: [bold]l2h ledger report --by month --since 2026-01-01 --csv > 2026.csv[/]
    """
    from l2h.serving.accounts import open_history
    from l2h.serving.accounts.history import name_keys, write_csv

    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other", param_hint="--csv")
    by = list(dict.fromkeys(by or ["key"]))
    bounds = {name: _day(text, name) for name, text in (("since", since), ("until", until)) if text is not None}
    names = key_names(keys if accounts is None else place_of(accounts, keys or KEYS, "--keys"))
    rows = open_history(place_of(accounts, ledger)).report(by, **bounds)
    if "key" in by:
        rows = name_keys(rows, names)
    if as_json:
        print_json(rows)
    elif as_csv:
        write_csv(rows, by, sys.stdout)
    elif not rows:
        print_line(f"{'the database' if accounts else ledger} has no charges" + (" in this time" if bounds else ""))
    else:
        _print_report(rows)


def prune(
    keep: Annotated[str, Option(help="How old a row may be: 90d, 12h.")],
    ledger: Ledger = DEFAULT,
    accounts: Accounts = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sum up the rows of charges that are older than so long, by day, key, model and version, and remove them.

    Every sum of `l2h ledger report` stays as it was. A server may go on meanwhile; `l2h serve --keep 90d` does the same
    by itself. A request that was pruned is charged again if it is repeated.

    Example: [bold]l2h ledger prune --keep 90d[/]
    """
    from l2h.serving.accounts import open_history
    from l2h.serving.accounts.history import parse_age

    rows = open_history(place_of(accounts, ledger)).prune(time.time() - parse_age(keep))
    line = f"summed up {rows} row{'s' * (rows != 1)} of {'the database' if accounts else ledger}"
    print_result({"ledger": None if accounts else str(ledger), "pruned": rows}, line, as_json)


def place_of(accounts: str | None, file: Path, flag: str = "--ledger") -> str | Path:
    """Return the database of ``--accounts``, or else the file of ``flag``; naming both is refused."""
    from l2h.serving.accounts import account_place

    if accounts is not None and file != (DEFAULT if flag == "--ledger" else KEYS):
        raise SettingsError(f"{flag} {file} and --accounts name two places: leave one out")
    return account_place(accounts, file)


def key_names(path: Path | str | None) -> dict[str, str]:
    """Return the names of keys by their ids; none where no place was named and there is no file."""
    from l2h.serving.accounts import open_keys

    if path is None and not KEYS.is_file():
        return {}
    return {key.id: key.name for key in open_keys(path or KEYS).read()}


def _print_report(rows: list[dict[str, Any]]) -> None:
    sums = [name for name in rows[0] if isinstance(rows[0][name], int)]
    groups = [name for name in rows[0] if name not in sums]
    table = make_table([*groups, *sums], right=sums)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in groups), *(f"{row[name]:,}" for name in sums))
    if len(rows) > 1:
        table.add_section()
        total = [f"{sum(row[name] for row in rows):,}" for name in sums]
        table.add_row(*("all" if i == 0 else "" for i in range(len(groups))), *total)
    make_console().print(table)


def _day(text: str, name: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day: write 2026-11-01", param_hint=f"--{name}") from None


COMMANDS: dict[str, Callable[..., None]] = {"report": report, "prune": prune}
