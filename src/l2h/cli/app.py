"""The application that holds the commands, and the one way in which they fail."""

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

import l2h
from l2h.cli.accounts import COMMANDS as ACCOUNTS
from l2h.cli.ask import ask
from l2h.cli.audit import COMMANDS as AUDIT
from l2h.cli.bench import COMMANDS as BENCH
from l2h.cli.calibrate import calibrate
from l2h.cli.compare import compare
from l2h.cli.demo import demo
from l2h.cli.devices import COMMANDS as DEVICES
from l2h.cli.evaluate import evaluate
from l2h.cli.export import export
from l2h.cli.frontier import frontier
from l2h.cli.keys import COMMANDS as KEYS
from l2h.cli.ledger import COMMANDS as LEDGER
from l2h.cli.output import console, log, log_to_stderr
from l2h.cli.paper import paper
from l2h.cli.recalibrate import recalibrate
from l2h.cli.runs import runs
from l2h.cli.serve import serve
from l2h.cli.shift import shift
from l2h.cli.sign import COMMANDS as SIGN
from l2h.cli.train import train
from l2h.cli.tune import tune
from l2h.errors import CostError, L2HError, SettingsError, UnknownNameError, in_one_line, missing_extra
from l2h.limits import LimitError

app = typer.Typer(
    name="l2h",
    help="Learning to help: train a server and an on-device rejector around a classifier that cannot change.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command, ending with one line and the right exit status at an error of L2H, not with a traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (CostError, LimitError, SettingsError, UnknownNameError) as error:
            _fail(error, 2)
        except L2HError as error:
            _fail(error, 1)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "l2h":
                raise
            _fail(missing_extra(f"this command needs the package {error.name!r}", "train,report"), 1)
        except KeyboardInterrupt:
            sys.stderr.write(
                "\ninterrupted; a training goes on with --resume, a comparison or a tuning with the same command\n"
            )
            raise typer.Exit(130) from None

    return guarded


def _fail(error: Exception, status: int) -> NoReturn:
    lines = "\n".join(map(in_one_line, str(error).split("\n")))  # a name in it must not steer the terminal
    console.print(Text.assemble(("error: ", "bold red"), lines), soft_wrap=True)
    raise typer.Exit(status)


_PLAIN = (demo, train, calibrate, evaluate, runs, compare, frontier, shift, tune, paper, export, serve, ask)
for _command in (*_PLAIN, recalibrate):
    app.command()(_guarded(_command))
for _group, _help, _commands in (
    ("keys", "Who may ask a server, and how much.", KEYS),
    ("ledger", "What a server has charged.", LEDGER),
    ("accounts", "Keys and charges of servers on several hosts, in PostgreSQL.", ACCOUNTS),
    ("devices", "What devices have reported to a server.", DEVICES),
    ("sign", "Bundles that devices can tell from those of strangers.", SIGN),
    ("audit", "What devices found out by asking by chance.", AUDIT),
    ("bench", "How fast the two sides are here.", BENCH),
):
    _inner = typer.Typer(name=_group, help=_help, no_args_is_help=True)
    for _name, _command in _commands.items():
        _inner.command(_name)(_guarded(_command))
    app.add_typer(_inner)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"l2h {l2h.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
) -> None:
    """Set what every command shares."""
    log_to_stderr(logging.WARNING if quiet else logging.INFO)


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", category=l2h.errors.L2HWarning)
        warnings.showwarning = _show_warning
        try:
            _guarded(app)(args=arguments)  # an option's callback is called outside of the command
        except typer.Exit as exit_:
            return exit_.exit_code
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


_show = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Log our own warnings as a line for people; show those of others as Python does."""
    if issubclass(category, l2h.errors.L2HWarning):
        log.warning("%s", message)
    else:
        _show(message, category, *where, **more)
