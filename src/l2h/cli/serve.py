"""``l2h serve``: a bundle's server, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from l2h.cli.options import takes_groups
from l2h.cli.output import print_json

if TYPE_CHECKING:
    from l2h.serving.process.config import ServingConfig

_model = partial(typer.Option, rich_help_panel="Model")
_function = partial(typer.Option, rich_help_panel="A Python function as the model")
_money = partial(typer.Option, rich_help_panel="Keys and charges")
_people = partial(typer.Option, rich_help_panel="A page for people")
_limits = partial(typer.Option, rich_help_panel="Limits")
_seen = partial(typer.Option, rich_help_panel="Metrics and traces")
_logs = partial(typer.Option, rich_help_panel="Logs and the end")
_NEEDS = ("uvicorn", "httptools", "orjson", "prometheus_client")


@dataclass(frozen=True)
class ServeOptions:
    """The fields of :class:`l2h.serving.process.config.ServingConfig`, in the units of the command line."""

    model: Annotated[
        str, Argument(metavar="BUNDLE", help="The bundle's folder, or its server's half; or module:function.")
    ]
    server: Annotated[str | None, Option(help="Of a bundle with several servers: the name of the one to serve.")] = None
    host: Annotated[str, Option(help="The address to listen at; 0.0.0.0 for all of this machine's.")] = "127.0.0.1"
    port: Annotated[int, Option("--port", "-p", help="0 for any that is free.")] = 8080
    workers: Annotated[int, Option("--workers", "-w", help="Processes that share the port.")] = 1
    tls_cert: Annotated[Path | None, Option(help="For HTTPS: the certificate, with its chain.")] = None
    tls_key: Annotated[Path | None, Option(help="Its key.")] = None
    bundle: Annotated[
        Path | None, _function(help="The bundle whose server it is, which says what it takes and gives.")
    ] = None
    shape: Annotated[str | None, _function(help="Without a bundle, of one input: 1,28,28.")] = None
    dtype: Annotated[str, _function(help="Without a bundle, of the inputs: uint8 or float32.")] = "float32"
    classes: Annotated[str | None, _function(help="Without a bundle, their names, cat,dog,bird; or how many.")] = None
    name: Annotated[str | None, _function(help="Of the model, on the wire. (default: the bundle's, or its own)")] = None
    threads: Annotated[int, _model(help="Of one model call. (0: the processors divided among the workers)")] = 0
    max_batch: Annotated[int, _model(help="Inputs of one model call, and of one request.")] = 64
    batch_delay: Annotated[float, _model(help="Milliseconds to wait for requests to join, under load.")] = 1.0
    watch: Annotated[float, _model(help="Seconds between checks of the bundle and the keys; both are reloaded.")] = 1.0
    load_timeout: Annotated[float, _model(help="Seconds within which a new bundle must have loaded and run.")] = 60.0
    keys: Annotated[Path | None, _money(help="The key file of `l2h keys`; without it only this machine may ask.")] = (
        None
    )
    open: Annotated[bool, _money("--open", help="Let everybody in, also from other machines.")] = False
    ledger: Annotated[Path, _money(help="SQLite file with a row for every charged request.")] = Path("ledger.db")
    accounts: Annotated[
        str | None,
        _money(help="PostgreSQL in place of --keys and --ledger, for several hosts: postgresql://USER@HOST/DATABASE."),
    ] = None
    when_accounts_fail: Annotated[
        str, _money(help="While --accounts cannot be reached: refuse, or serve from --reserve and charge afterwards.")
    ] = "refuse"
    reserve: Annotated[
        int, _money(help="Inputs by which this server may then exceed the quota of a key; kept beside --ledger.")
    ] = 1000
    price: Annotated[int, _money(help="Units charged for an input.")] = 1
    keep: Annotated[
        str | None, _money(help="Sum up rows of the ledger that are older: 90d. (default: keep them all)")
    ] = None
    dashboard: Annotated[
        bool, _people("--dashboard", help="Show traffic, latency, keys and charges at /dashboard, for admin keys.")
    ] = False
    admin_key_file: Annotated[
        Path | None,
        _people(help="Who may log in there. (default: the admin keys of --keys; without keys, this machine alone)"),
    ] = None
    max_wait: Annotated[float, _limits(help="Milliseconds in the queue beyond which requests get 503 at once.")] = 500.0
    max_body: Annotated[float, _limits(help="MiB of a body. (0: what --max-batch inputs need as JSON)")] = 0.0
    max_memory: Annotated[float, _limits(help="MiB of bodies that one worker holds at a time.")] = 256.0
    max_connections: Annotated[int, _limits(help="Of one worker.")] = 1024
    max_per_address: Annotated[
        int, _limits(help="Connections of one worker with one address. (0: any number, for a server behind a proxy)")
    ] = 512
    body_timeout: Annotated[float, _limits(help="Seconds within which a body must have come.")] = 10.0
    idle_timeout: Annotated[float, _limits(help="Seconds after which an idle connection is closed.")] = 60.0
    otlp: Annotated[
        str | None, _seen(help="Send traces and metrics to this OpenTelemetry collector: http://HOST:4318.")
    ] = None
    traces: Annotated[float, _seen(help="The most traces that begin here per second, and as many of callers.")] = 10.0
    metric_keys: Annotated[
        int, _seen(help="Keys with metrics of their own; the others are counted together. (0: none)")
    ] = 50
    drain: Annotated[float, _logs(help="Seconds to finish what is in flight at SIGTERM.")] = 30.0
    log_requests: Annotated[bool, _logs(help="A line for every request.")] = True
    log_level: Annotated[str, _logs(help="debug, info, warning or error.")] = "info"
    print_config: Annotated[bool, Option("--print-config", help="Print the settings as JSON and stop.")] = False

    def config(self) -> ServingConfig:
        """Return the server's settings: seconds instead of milliseconds, bytes instead of MiB, texts for paths."""
        from l2h.errors import SettingsError
        from l2h.functions import is_function
        from l2h.serving.accounts.history import parse_age
        from l2h.serving.process.config import ServingConfig

        left_out = ("print_config", "model")
        values: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in left_out}
        if is_function(self.model) and not Path(self.model).exists():
            values |= {"function": self.model, "bundle": self.bundle or ""}
        elif self.bundle is None:
            values["bundle"] = self.model
        else:
            raise SettingsError(f"--bundle goes with a function, and {self.model} is none: write module:function")
        values |= {"shape": _sizes(self.shape), "classes": _names(self.classes)}
        values |= {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        values["keep"] = None if self.keep is None else parse_age(self.keep)
        values |= {name: values[name] / 1e3 for name in ("batch_delay", "max_wait")}
        values |= {name: round(values[name] * 2**20) for name in ("max_body", "max_memory")}
        return ServingConfig(**values)


def _sizes(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no shape: whole numbers, 1,28,28", param_hint="--shape") from None


def _names(text: str | None) -> tuple[str, ...]:
    if text is not None and text.isdecimal():
        return tuple(str(k) for k in range(int(text)))
    return () if text is None else tuple(name.strip() for name in text.split(","))


@takes_groups
def serve(options: ServeOptions) -> None:
    """Serve a bundle or a function over HTTP: the Open Inference Protocol (V2), with batches, keys, quotas, a ledger.

    Requests of many connections are joined into one call of the model. A new bundle in the folder is taken over
    without dropping a request; SIGHUP makes it look at once, SIGTERM finishes what is in flight. Logs are JSON lines
    on stderr.

    Example: [bold]l2h serve bundles/digits[/]

    Example: [bold]l2h serve bundles/two --server box --port 8081 --ledger box.db[/] serves one of several servers, each
    of which has a process and a ledger of its own.

    Example: [bold]l2h serve mymodel:predict --bundle bundles/digits[/] serves a Python function for a bundle without a
    server; [bold]--shape 1,28,28 --dtype uint8 --classes 10[/] describes one without a bundle.

    Example: [bold]l2h keys add phones --file keys.json --quota 10000/day --rate 50/s[/], then
    [bold]l2h serve bundles/digits --host 0.0.0.0 --port 8443 --workers 2 --keys keys.json --tls-cert cert.pem --tls-key
    key.pem[/]

    Example: [bold]l2h keys add phones --accounts postgresql://l2h@db/l2h[/], then on every host [bold]l2h serve
    bundles/digits --host 0.0.0.0 --accounts postgresql://l2h@db/l2h[/], with the password in PGPASSWORD or ~/.pgpass.

    Example: [bold]l2h keys add me --admin --file admin.json[/], then [bold]l2h serve bundles/digits --dashboard
    --admin-key-file admin.json[/] has a page with the numbers at /dashboard.
    """
    import os
    import sys

    from l2h.errors import missing_extra
    from l2h.serving.accounts import hide_password

    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise missing_extra(f"serving needs {', '.join(missing)}", "serve")
    if options.accounts is not None:
        options = replace(options, accounts=hide_password(options.accounts))
    config = options.config()
    if options.print_config:
        print_json(config.as_dict())
        return
    sys.stdout.flush()
    # The server takes this process's place, without what the commands have loaded.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "l2h.serving", config.to_json()])
