"""``l2h keys``: who may ask a server, and how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Option("--file", "-f", help="The key file.")]
DEFAULT = Path("keys.json")


def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: File = DEFAULT,
    quota: Annotated[
        str | None, typer.Option(help="Inputs in a period: 10000/day, 500/hour. (default: no bound)")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Inputs a second: 50/s, 30/minute. (default: no bound)")] = None,
    burst: Annotated[
        int | None, typer.Option(help="How many of them at once. (default: a second's worth)", min=1)
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May read the metrics.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a key and print it, this once: the file holds its hash. A running server takes it over within a second.

    Example: [bold]l2h keys add phones --file keys.json --quota 10000/day --rate 50/s[/]
    """
    from l2h.cli.output import print_json
    from l2h.serving.allowance import Quota, Rate
    from l2h.serving.keys import add_key

    if burst is not None and rate is None:
        raise typer.BadParameter("--burst goes with --rate", param_hint="--burst")
    key, text = add_key(
        file,
        name,
        quota=None if quota is None else Quota.parse(quota),
        rate=None if rate is None else Rate.parse(rate, burst),
        admin=admin,
    )
    if as_json:
        print_json({"id": key.id, "name": key.name, "key": text})
    else:
        typer.echo(text)


def show(
    file: File = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list.")] = False,
) -> None:
    """List the keys of a file, without their hashes.

    Example: [bold]l2h keys list --file keys.json[/]
    """
    from rich.table import Table

    from l2h.cli.output import make_console, print_json
    from l2h.serving.keys import read_keys

    rows = [{name: value for name, value in key.as_dict().items() if name != "sha256"} for key in read_keys(file)]
    if as_json:
        print_json(rows)
        return
    table = Table("id", "name", "in use", "quota", "rate", "burst", "admin", "created")
    for row in rows:
        flags = ["yes" if row["enabled"] else "revoked", "yes" if row["admin"] else ""]
        bounds = [str(row[name] or "") for name in ("quota", "rate", "burst")]
        table.add_row(row["id"], row["name"], flags[0], *bounds, flags[1], row["created"])
    make_console().print(table)


def revoke(
    who: Annotated[str, typer.Argument(help="The name or the id.")],
    file: File = DEFAULT,
) -> None:
    """Revoke a key: a running server refuses it within a second, with 403.

    Example: [bold]l2h keys revoke phones --file keys.json[/]
    """
    from l2h.serving.keys import revoke_key

    for key in revoke_key(file, who):
        typer.echo(f"revoked {key.id} ({key.name})")


COMMANDS: dict[str, Callable[..., None]] = {"add": add, "list": show, "revoke": revoke}
