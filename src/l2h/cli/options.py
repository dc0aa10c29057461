"""Options that several commands share, and commands whose options are the fields of dataclasses.

Such a group of options has ``Annotated`` fields, as typer reads them, and travels as one object.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option

from l2h.errors import CostError, SettingsError

if TYPE_CHECKING:
    from l2h.costs import Costs
    from l2h.experiments.finished import Bound
    from l2h.experiments.plan import Plan
    from l2h.money import Money

Prices = list[float] | None
Texts = list[str] | None
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.*)", re.DOTALL)
#: Options by their panel of ``--help``.
price_option = partial(Option, rich_help_panel="Prices")
run_option = partial(Option, rich_help_panel="Run")
training_option = partial(Option, rich_help_panel="Training")
_money = partial(Option, rich_help_panel="Prices in money, instead of --c-e and --c-1")


def _load_methods(files: Texts) -> Texts:
    if files:
        from l2h.methods import load_file

        for file in files:
            load_file(file)
    return files


def check_on(on: str | None) -> str | None:
    """Refuse, before anything is read, what is no cluster's address."""
    if on is not None:
        from l2h.experiments.clusters import check_cluster

        check_cluster(on)
    return on


TestPart = Annotated[str | None, Option(help="The test part, where it is a file of its own.")]
Target = Annotated[
    str | None,
    Option("--target", help="Of a table: the column of labels. (default: the one called target, label, class or y)"),
]
Limit = Annotated[int | None, Option(help="Use only so many rows of each part.", min=1)]
Size = Annotated[
    int | None,
    Option(
        help="Bring images of any size, from a folder, Parquet or .tar files, to so many pixels: the shorter side is "
        "resized, and the centre is cut out.",
        min=1,
    ),
]
OnError = Annotated[
    str | None,
    Option(
        help="What is done about an image, a .tar or a Parquet file that is damaged: stop, or skip, which leaves it "
        "out and names it. (default: stop, or as in the run)"
    ),
]
Cache = Annotated[
    str | None,
    Option(
        help="Folder in which decoded images are kept, and from which they are read while training where memory is "
        "short. (default: as in the run, $L2H_CACHE or ~/.cache/l2h)"
    ),
]
Device = Annotated[str, training_option(help="auto, cpu, cuda, cuda:1.")]
Precision = Annotated[str, training_option(help="fp32, tf32 or bf16.")]
Set = Annotated[
    Texts,
    training_option(
        "--set",
        help="Any further setting: folds=3, distill=0.7, server.epochs=20, rejector.lr=3e-4, server.optimizer=sgd.",
    ),
]
ModelOption = Annotated[
    Texts,
    training_option(
        "--option", help="A model's own option: server.width=2, rejector.width=4, client.max_depth=4, server.patch=4."
    ),
]
MethodFiles = Annotated[
    Texts, Option("--method-file", callback=_load_methods, help="Python file that registers methods; repeat.")
]
TextColumn = Annotated[
    str | None,
    Option("--text-column", rich_help_panel="Outcomes only", help="The table's column of inputs. (default: prompt)"),
]
Asked = Annotated[
    Texts,
    Option(
        "--server",
        help="Of a run around somebody's API, for inputs that it was never asked about: its function again, or its "
        "address, which then gets the key of the variable L2H_KEY; of one of several servers NAME=ADDRESS.",
    ),
]
SecondOpinion = Annotated[
    bool | None,
    Option(
        "--second-opinion/--no-second-opinion",
        help="Whether the rejector's student may answer too. (default: as in the run)",
    ),
]
ServerRun = Annotated[Path | None, Option(help="The run of a server trained by itself (--role server).")]
BundleFolder = Annotated[Path, Argument(help="The bundle's folder, as l2h export writes it.")]
KeyFile = Annotated[Path | None, Option(help="File that holds the key for the server. (default: the variable L2H_KEY)")]
ServerPrices = Annotated[
    Texts,
    price_option(
        "--price", help="Of several servers, the prices of one: NAME=C_E or NAME=C_E:C_1; repeat. (default: as made)"
    ),
]
On = Annotated[
    str | None,
    run_option(
        "--on",
        callback=check_on,
        help="Run on a Ray cluster: ray (the one of RAY_ADDRESS or of this machine, else a new one here), or "
        "ray://HOST:10001. (default: this machine, without Ray)",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class StudyOptions:
    """On what a comparison or a frontier is made, and by which settings."""

    data: Annotated[
        str,
        Option(
            "--dataset",
            "--data",
            "-d",
            help="digits (with the demo's client and server), or whatever l2h train takes: an .npz, a table, an image "
            "folder, Parquet, CIFAR, SVHN.",
        ),
    ] = "digits"
    seeds: Annotated[int, run_option(help="How many seeds.")] = 3
    first_seed: Annotated[int, run_option(help="The first of them.", min=0)] = 0
    test: TestPart = None
    target: Target = None
    limit: Limit = None
    size: Size = None
    client: Annotated[str | None, Option("--client", "-m", help="As in l2h train. (default: lenet5; digits: tree)")] = (
        None
    )
    augment: Annotated[
        str | None, training_option(help="none, shift or flip+shift. (default: what suits the data)")
    ] = None
    device: Device = "auto"
    precision: Precision = "fp32"
    set_: Set = None
    option: ModelOption = None

    @property
    def all_seeds(self) -> tuple[int, ...]:
        if self.seeds < 1:
            raise SettingsError(f"--seeds {self.seeds}: at least 1")
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def plan(self, sized: bool, **given: Any) -> "Plan":
        """Return the plan of these options and of more that are given; ``sized``: rejectors have a budget."""
        from l2h.experiments.compare.comparing import comparison_plan

        given |= {name: getattr(self, name) for name in ("client", "test", "target", "limit", "size")}
        settings = {"device": self.device, "precision": self.precision}
        return comparison_plan(self.data, given, settings, self.set_ or [], self.option or [], sized)


@dataclass(frozen=True)
class MoneyOptions:
    """Prices in money, instead of the plain ones."""

    request_cost: Annotated[
        Texts,
        _money("--request-cost", help="What one request costs: 0.002; of several servers NAME=0.002, one per server."),
    ] = None
    error_cost: Annotated[float | None, _money(help="What one wrong answer costs: 0.5.")] = None
    server_error_cost: Annotated[
        float | None, _money(help="What one wrong answer of the server costs. (default: as --error-cost)")
    ] = None
    currency: Annotated[str | None, _money(help="How amounts are written. (default: EUR)")] = None
    per_day: Annotated[
        float | None, _money(help="Inputs in a day, for amounts of a day. (default: amounts of 1,000 inputs)")
    ] = None

    def read(self, *prices: Any) -> "Money | None":
        """Return the money; None where none is given. It does not go together with any of these prices."""
        from l2h.money import Money

        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            return None
        flags = {name: f"--{name.replace('_', '-')}" for name in vars(self)}
        missing = [flags[name] for name in ("request_cost", "error_cost") if name not in given]
        if missing:
            raise SettingsError(
                f"{flags[next(iter(given))]} needs {' and '.join(missing)}: the prices follow from both"
            )
        if any(prices):
            raise SettingsError(
                f"{flags['request_cost']} stands for prices: leave out --c-e, --c-1 and --price, or give these alone"
            )
        requests = by_name(self.request_cost, flags["request_cost"]) or ""
        try:
            paid = {"": float(requests)} if isinstance(requests, str) else {n: float(v) for n, v in requests.items()}
        except ValueError:
            raise SettingsError(
                f"{flags['request_cost']} {str(requests)[:40]}: no number; write 0.002, or NAME=0.002 per server"
            ) from None
        return Money(**given | {"request_cost": paid.get("", paid)})


def is_named(text: str) -> bool:
    """Return whether a value is written ``NAME=VALUE``."""
    return _NAMED.fullmatch(text) is not None


def by_name(texts: Texts, flag: str) -> str | dict[str, str] | None:
    """Return the one value of an option, or its values by their names, written ``NAME=VALUE``; None for none."""
    named = [_NAMED.fullmatch(text) for text in texts or ()]
    if not texts or (len(texts) == 1 and named[0] is None):
        return texts[0] if texts else None
    found: dict[str, str] = {}
    for text, match in zip(texts, named, strict=True):
        if match is None:
            raise SettingsError(
                f"{flag} {text}: it has no name; with several write NAME=VALUE: {flag} box=... {flag} cloud=..."
            )
        if not match[2]:
            raise SettingsError(f"{flag} {text}: it has no value; write NAME=VALUE")
        if match[1] in found:
            raise SettingsError(f"{flag} {text}: {match[1]!r} is given twice")
        found[match[1]] = match[2]
    return found


def read_prices(texts: Texts) -> "dict[str, Costs]":
    """Return the prices of servers by their names, one each; see :func:`read_price_grid`."""
    grid = read_price_grid(texts)
    for name, prices in grid.items():
        if len(prices) > 1:
            raise SettingsError(f"--price {name}=...: {name!r} is given twice")
    return {name: prices[0] for name, prices in grid.items()}


def read_price_grid(texts: Texts) -> "dict[str, list[Costs]]":
    """Return all prices of each server by its name, each written ``NAME=C_E`` or ``NAME=C_E:C_1``."""
    from l2h.costs import Costs

    grid: dict[str, list[Costs]] = {}
    for text in texts or ():
        name, _, price = text.partition("=")
        if not is_named(text):
            raise SettingsError(f"--price {text}: it names no server; write NAME=C_E or NAME=C_E:C_1")
        try:
            grid.setdefault(name, []).append(Costs(*(float(part) for part in price.split(":", 1))))
        except CostError as error:
            raise SettingsError(f"--price {text}: {error}") from error
        except ValueError:
            raise SettingsError(f"--price {text}: no numbers; write {name}=C_E or {name}=C_E:C_1") from None
    return grid


def read_bounds(texts: Texts) -> "list[Bound]":
    """Return bounds over all servers, one per text; or one bound made of those with names, written ``NAME=LIMIT``."""
    from l2h.limits import RateLimit

    if not any(map(is_named, texts or ())):
        return [RateLimit.parse(text) for text in texts or ()]
    named = by_name(texts, "--limit")
    assert isinstance(named, dict)
    return [{name: RateLimit.parse(text) for name, text in named.items()}]


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer whose options are the fields of the groups that this one takes, in their order."""
    groups = {name: group for name, group in get_type_hints(command).items() if name != "return"}
    parameters = []
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
            )

    @wraps(command)
    def called(**values: Any) -> None:
        command(**{name: group(**{f.name: values[f.name] for f in fields(group)}) for name, group in groups.items()})

    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called
