"""``l2h devices``: what devices have reported to a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from l2h.cli.ledger import DEFAULT, KEYS, KeyFile, Ledger, key_names, place_of
from l2h.cli.output import make_console, make_table, print_json, print_line, print_result
from l2h.errors import UnknownNameError

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def show(
    ledger: Ledger = DEFAULT,
    keys: KeyFile = None,
    accounts: Annotated[
        str | None,
        Option(help="With a database of PostgreSQL: the URL, for names of keys. Devices are those of this host."),
    ] = None,
    flagged: Annotated[
        bool, Option("--flagged", help="Only those that drift, are offline or run an old bundle.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the devices that report to a server, oldest news first: those of `EdgeClient(report=True)`.

    "offline": no news for three times as long as it should take, while the server ran. "old_bundle": the server, or
    another device with the same key, has a later one. "drift": the device's own alarm.

    Example: [bold]l2h devices list --ledger ledger.db[/]
    """
    from l2h.serving.accounts import open_devices

    names = key_names(keys if accounts is None else place_of(accounts, keys or KEYS, "--keys"))
    found = open_devices(ledger, accounts).view(names)
    if flagged:
        found["devices"] = [device for device in found["devices"] if device["flags"]]
    if as_json:
        print_json(found)
        return
    if not found["devices"]:
        print_line(f"no device {'is flagged' if found['total'] else 'has reported'} beside {ledger}")
        return
    right = ("news", "inputs", "asked", "saving", "p95")
    table = make_table(("device", "key", "news", "flags", "bundle", *right[1:]), right=right)
    for device in found["devices"]:
        table.add_row(*_cells(device))
    make_console().print(table)
    print_line(f"as of {found['now']}")


def forget(
    device: Annotated[str, Argument(help="Its name.")],
    ledger: Ledger = DEFAULT,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forget a device that is no longer in use; its name is then free for any key. A server may go on meanwhile.

    Example: [bold]l2h devices forget cam-7[/]
    """
    from l2h.serving.accounts import open_devices

    if not open_devices(ledger).forget(device):
        raise UnknownNameError(f"no device {device!r} has reported beside {ledger}: `l2h devices list` shows them")
    print_result({"device": device, "forgotten": True}, f"forgot {device}", as_json)


def _cells(device: dict[str, Any]) -> list[str]:
    saving, latency = device["expected_saving"], device["latency"]
    return [
        device["device"],
        escape(device["key_name"] or device["key"]),
        _ago(device["age"]),
        ", ".join(device["flags"]),
        f"{device['bundle']['name']} {device['bundle']['version']}",
        f"{device['inputs']:,}",
        f"{device['asked']:,}",
        "" if saving is None else f"{saving:,.4g}",
        "" if latency is None else f"{1e3 * latency['p95']:,.3g} ms",
    ]


def _ago(seconds: float) -> str:
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), _UNITS[-1])
    return f"{seconds // length:.0f} {unit}"


COMMANDS: dict[str, Callable[..., None]] = {"list": show, "forget": forget}
