"""``l2h keys``: who may ask a server, and how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from l2h.cli.ledger import DEFAULT, KEYS, place_of
from l2h.cli.output import make_console, make_table, print_json

if TYPE_CHECKING:
    from l2h.serving.accounts.key import Key

File = Annotated[Path, Option("--file", "-f", help="The key file.")]
Accounts = Annotated[
    str | None, Option(help="A PostgreSQL database in place of the file: postgresql://USER@HOST/DATABASE.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON: a list of keys, without their hashes.")]
QuotaText = Annotated[str | None, Option(help="Inputs in a period: 10000/day, 500/hour.", show_default=False)]
RateText = Annotated[str | None, Option(help="Inputs per second: 50/s, 30/minute.", show_default=False)]
Burst = Annotated[int | None, Option(help="How many of them at once. (default: a second's worth)", min=1)]


def add(
    name: Annotated[str, Argument(help="Whose key it is.")],
    file: File = KEYS,
    quota: QuotaText = None,
    rate: RateText = None,
    burst: Burst = None,
    accounts: Accounts = None,
    admin: Annotated[bool, Option("--admin", help="May read the metrics and the dashboard.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a key and print it, this once: the file holds its hash. A running server takes it over within a second.

    Without --quota and --rate it has no bound.

    Example: [bold]l2h keys add phones --file keys.json --quota 10000/day --rate 50/s[/]
    """
    from l2h.serving.accounts import open_keys

    key, text = open_keys(place_of(accounts, file, "--file")).add(name, admin=admin, **_allowances(quota, rate, burst))
    if as_json:
        print_json({"id": key.id, "name": key.name, "key": text})
    else:
        typer.echo(text)


def change(
    who: Annotated[str, Argument(help="The name or the id.")],
    file: File = KEYS,
    quota: QuotaText = None,
    rate: RateText = None,
    burst: Burst = None,
    no_quota: Annotated[bool, Option("--no-quota", help="Take the quota away.")] = False,
    no_rate: Annotated[bool, Option("--no-rate", help="Take the rate away.")] = False,
    accounts: Accounts = None,
    as_json: AsJson = False,
) -> None:
    """Change what a key may use; the key itself stays. A running server follows within a second.

    What was used in the period counts against the new quota.

    Example: [bold]l2h keys change phones --quota 20000/day --no-rate[/]
    """
    from l2h.serving.accounts import open_keys

    for named, taken, option in ((quota, no_quota, "quota"), (rate, no_rate, "rate")):
        if named is not None and taken:
            raise typer.BadParameter(f"--{option} and --no-{option} exclude each other", param_hint=f"--no-{option}")
    changes = _allowances(quota, rate, burst)
    changes |= ({"quota": None} if no_quota else {}) | ({"rate": None} if no_rate else {})
    if not changes:
        raise typer.BadParameter("nothing to change: give --quota, --rate, --no-quota or --no-rate")
    changed = [_shown(key) for key in open_keys(place_of(accounts, file, "--file")).change(who, **changes)]
    if as_json:
        print_json(changed)
        return
    for key in changed:
        bounds = [f"{name} {key[name]}" for name in ("quota", "rate") if key[name] is not None]
        typer.echo(f"{key['id']} ({key['name']}): {', '.join(bounds) or 'no bound'}")


def show(
    file: File = KEYS,
    ledger: Annotated[
        Path | None, Option("--ledger", help="The server's ledger. (default: ledger.db, if there is one)")
    ] = None,
    accounts: Accounts = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a file, without their hashes, and what each has used: of its quota in this period, and in all.

    Example: [bold]l2h keys list --file keys.json --ledger ledger.db[/]
    """
    from l2h.serving.accounts import open_history, open_keys
    from l2h.serving.accounts.history import SUMS

    keys = open_keys(place_of(accounts, file, "--file")).read()
    rows = [_shown(key) for key in keys]
    if accounts is not None or ledger is not None or DEFAULT.is_file():
        history = open_history(place_of(accounts, ledger or DEFAULT))
        used, sums = history.used(keys), {row.pop("key"): row for row in history.report(["key"])}
        for row in rows:
            row["used"] = used.get(row["id"])
            row["charged"] = sums.get(row["id"]) or dict.fromkeys(SUMS, 0)
    if as_json:
        print_json(rows)
        return
    told = ("used", "inputs", "units") if rows and "charged" in rows[0] else ()
    right = ("burst", *told)
    table = make_table(("id", "name", "in use", "quota", "rate", "burst", *told, "admin", "created"), right=right)
    for row in rows:
        flags = ["yes" if row["enabled"] else "revoked", "yes" if row["admin"] else ""]
        bounds = [str(row[name] or "") for name in ("quota", "rate", "burst")]
        use = []
        if told:
            share = "" if row["used"] is None else f"{row['used']:,}"
            use = [share, *(f"{row['charged'][name]:,}" for name in told[1:])]
        table.add_row(row["id"], escape(row["name"]), flags[0], *bounds, *use, flags[1], row["created"])
    make_console().print(table)


def revoke(
    who: Annotated[str, Argument(help="The name or the id.")],
    file: File = KEYS,
    accounts: Accounts = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: a running server refuses it within a second, with 403.

    Example: [bold]l2h keys revoke phones --file keys.json[/]
    """
    from l2h.serving.accounts import open_keys

    revoked = open_keys(place_of(accounts, file, "--file")).change(who, enabled=False)
    if as_json:
        print_json([_shown(key) for key in revoked])
        return
    for key in revoked:
        typer.echo(f"revoked {key.id} ({key.name})")


def _shown(key: Key) -> dict[str, Any]:
    return {name: value for name, value in key.as_dict().items() if name != "sha256"}


def _allowances(quota: str | None, rate: str | None, burst: int | None) -> dict[str, Any]:
    from l2h.serving.accounts.key import Quota, Rate

    if burst is not None and rate is None:
        raise typer.BadParameter("--burst goes with --rate", param_hint="--burst")
    given: dict[str, Any] = {} if quota is None else {"quota": Quota.parse(quota)}
    return given if rate is None else given | {"rate": Rate.parse(rate, burst)}


COMMANDS: dict[str, Callable[..., None]] = {"add": add, "change": change, "list": show, "revoke": revoke}
