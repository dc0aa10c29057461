"""``l2h accounts``: keys and charges of servers on several hosts, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer import Argument, Option

from l2h.cli.ledger import KEYS
from l2h.cli.output import console, print_result
from l2h.errors import warn


def copy(
    ledger: Annotated[Path, Argument(metavar="SQLITE", help="The ledger that `l2h serve` wrote.")],
    url: Annotated[str, Argument(metavar="POSTGRES", help="The database: postgresql://USER@HOST/DATABASE.")],
    keys: Annotated[Path | None, Option(help="The keys to copy. (default: keys.json, if there is one)")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy a ledger and its keys to PostgreSQL, for `l2h serve --accounts`: in one transaction, all or nothing.

    Every sum stays exact. It may be repeated, and then brings what is new: copy while the server runs, stop it, copy
    once more, and start it with --accounts. The ledgers of several hosts may be copied to one database, one after
    another. Keys that it has stay as they are there.

    Example: [bold]l2h accounts copy ledger.db postgresql://l2h@db/l2h --keys keys.json[/]
    """
    from l2h.serving.accounts import account_place, copy_ledger, open_keys

    account_place(url, ledger)
    file = keys or (KEYS if KEYS.is_file() else None)
    known = [] if file is None else open_keys(file).read()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("charges", total=None)
        copied = copy_ledger(ledger, known, url, lambda done, of: bar.update(task, completed=done, total=of))
    old = copied["requests"] - copied["charges"]
    pruned = f", and the sums of {old:,} charges that were pruned" if old else ""
    line = f"copied what is new: keys {copied['keys']}, charges {copied['charges']:,}{pruned}"
    print_result(copied, line, as_json)
    if copied["unknown"]:
        few = ", ".join(copied["unknown"][:3]) + (", ..." if len(copied["unknown"]) > 3 else "")
        warn(
            f"the database has charges of keys that it does not know ({few}): copy again with the --keys that has them"
        )


COMMANDS: dict[str, Callable[..., None]] = {"copy": copy}
