"""``l2h serve``: a bundle's server, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l2h.cli.groups import takes_groups

if TYPE_CHECKING:
    from l2h.serving.process.config import ServingConfig

MODEL, LIMITS, MONEY, LOGS = "Model", "Limits", "Keys and charges", "Logs and the end"
_NEEDS = ("uvicorn", "httptools", "orjson", "prometheus_client")


@dataclass(frozen=True)
class ServeOptions:
    """The fields of :class:`l2h.serving.process.config.ServingConfig`, in the units of the command line."""

    bundle: Annotated[Path, typer.Argument(help="The bundle's folder, or its server's half.")]
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all of this machine's.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option("--port", "-p", help="0 for any that is free.")] = 8080
    workers: Annotated[int, typer.Option("--workers", "-w", help="Processes that share the port.")] = 1
    tls_cert: Annotated[Path | None, typer.Option(help="For HTTPS: the certificate, with its chain.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None
    threads: Annotated[
        int,
        typer.Option(help="Of one model call. (0: the processors divided among the workers)", rich_help_panel=MODEL),
    ] = 0
    max_batch: Annotated[
        int, typer.Option(help="Inputs of one model call, and of one request.", rich_help_panel=MODEL)
    ] = 64
    batch_delay: Annotated[
        float, typer.Option(help="Milliseconds to wait for requests to join, under load.", rich_help_panel=MODEL)
    ] = 1.0
    watch: Annotated[
        float,
        typer.Option(
            help="Seconds between checks of the bundle and the keys; both are reloaded.", rich_help_panel=MODEL
        ),
    ] = 1.0
    keys: Annotated[
        Path | None,
        typer.Option(help="The key file of `l2h keys`; without it only this machine may ask.", rich_help_panel=MONEY),
    ] = None
    open: Annotated[
        bool, typer.Option("--open", help="Let everybody in, also from other machines.", rich_help_panel=MONEY)
    ] = False
    ledger: Annotated[
        Path, typer.Option(help="SQLite file with a row for every charged request.", rich_help_panel=MONEY)
    ] = Path("ledger.db")
    price: Annotated[int, typer.Option(help="Units charged for an input.", rich_help_panel=MONEY)] = 1
    max_wait: Annotated[
        float,
        typer.Option(help="Milliseconds in the queue beyond which requests get 503 at once.", rich_help_panel=LIMITS),
    ] = 500.0
    max_body: Annotated[
        float, typer.Option(help="MiB of a body. (0: what --max-batch inputs need as JSON)", rich_help_panel=LIMITS)
    ] = 0.0
    max_memory: Annotated[
        float, typer.Option(help="MiB of bodies that one worker holds at a time.", rich_help_panel=LIMITS)
    ] = 256.0
    max_connections: Annotated[int, typer.Option(help="Of one worker.", rich_help_panel=LIMITS)] = 1024
    body_timeout: Annotated[
        float, typer.Option(help="Seconds within which a body must have come.", rich_help_panel=LIMITS)
    ] = 10.0
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds after which an idle connection is closed.", rich_help_panel=LIMITS)
    ] = 60.0
    drain: Annotated[
        float, typer.Option(help="Seconds to finish what is in flight at SIGTERM.", rich_help_panel=LOGS)
    ] = 30.0
    log_requests: Annotated[bool, typer.Option(help="A line for every request.", rich_help_panel=LOGS)] = True
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.", rich_help_panel=LOGS)] = "info"
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings as JSON and stop.")] = False

    def config(self) -> ServingConfig:
        """Return the server's settings: seconds instead of milliseconds, bytes instead of MiB, texts for paths."""
        from l2h.serving.process.config import ServingConfig

        values: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "print_config"}
        values |= {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        values |= {name: values[name] / 1e3 for name in ("batch_delay", "max_wait")}
        values |= {name: round(values[name] * 2**20) for name in ("max_body", "max_memory")}
        return ServingConfig(**values)


@takes_groups
def serve(options: ServeOptions) -> None:
    """Serve a bundle over HTTP: the Open Inference Protocol (V2), with batches, keys, quotas and a ledger.

    Requests of many connections are joined into one call of the model. A new bundle in the folder is taken over
    without dropping a request; SIGHUP makes it look at once, SIGTERM finishes what is in flight. Logs are JSON lines
    on stderr.

    Example: [bold]l2h serve bundles/digits[/]

    Example: [bold]l2h keys add phones --file keys.json --quota 10000/day --rate 50/s[/], then
    [bold]l2h serve bundles/digits --host 0.0.0.0 --port 8443 --workers 2 --keys keys.json --tls-cert cert.pem --tls-key
    key.pem[/]
    """
    import os
    import sys

    from l2h.cli.output import print_json
    from l2h.errors import MissingExtraError

    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"serving needs {', '.join(missing)}: pip install 'l2h[serve]'")
    config = options.config()
    if options.print_config:
        print_json(config.as_dict())
        return
    sys.stdout.flush()
    # The server takes this process's place, without what the commands have loaded.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "l2h.serving", config.to_json()])
