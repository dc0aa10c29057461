"""What to train and on what: a plan, what is refused of one, and the plans of the digits."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from l2h import methods
from l2h.classifiers import Classifier, Preprocessing, as_client
from l2h.costs import Costs, cost_grid
from l2h.data import Dataset
from l2h.decision import SERVER, AnyCosts, RejectorSpec
from l2h.errors import SettingsError, UnknownNameError, about
from l2h.methods import Learned
from l2h.models import NAMES
from l2h.money import Money
from l2h.remote import SKLEARN, RemoteServer, is_remote
from l2h.remote.oip import given_key
from l2h.settings import Settings, StageSettings
from l2h.system.client_features import check_wanted
from l2h.system.servers import check_method, check_name, check_student
from l2h.system.sizing import choose_budget
from l2h.system.steps import choose_method
from l2h.training.estimators import find_estimator
from l2h.training.links import parse_link

STAND_INS = ("tree", *NAMES)
_OF_FILES = ("preprocessing", "output", "accuracy")
_NEWER = (
    *("method", "method_files", "server_version", "server_batch", "server_cache", "target", "size", "budget"),
    *("cache", "on_error", "client_features", "servers", "prices", "money", "second_opinion", *_OF_FILES),
)


@dataclass(frozen=True)
class Plan:
    """What to train and on what; its plain values are what ``config.json`` holds under ``training``."""

    data: str  # what :func:`l2h.load_dataset` takes
    test: str | None = None  # its test part, where it is a file of its own
    limit: int | None = None  # use only so many rows of each part
    size: int | None = None  # what images of any size are brought to
    cache: str | None = None  # the folder of decoded images; None: that of the environment
    on_error: str | None = None  # what is done about damaged images and files: ``stop`` (also where None) or ``skip``
    target: str | None = None  # the column of a table that holds the labels; None: the one that is called so
    client: str = "lenet5"  # a file, or a stand-in trained here: ``tree`` or a model's name
    # Share of the training samples for the stand-in; below 1 they are its own, the rest is for server and rejector.
    client_share: float = 1.0
    calibration: float = 0.1  # share of the training samples kept for calibration alone
    server: str = "alexnet"  # a model's name, the file of a fixed server, or an address or function that is asked
    servers: dict[str, str] = field(default_factory=dict)  # several of these by name, instead of ``server``
    second_opinion: bool = False  # whether the rejector's student may answer
    # Of a server that is asked; None for the defaults of :class:`l2h.RemoteServer`.
    server_version: str | None = None
    server_batch: int | None = None
    server_cache: str | None = None  # the folder of its answers; None: the run folder
    rejector: str | None = None  # ``attached``, ``separate``; None for what the method uses, else ``attached``
    # The first price of each is the one reported.
    c_1: tuple[float, ...] = (1.0,)
    c_e: tuple[float, ...] = (0.1,)
    prices: dict[str, dict[str, float]] = field(default_factory=dict)  # of each server, instead of ``c_1`` and ``c_e``
    money: dict[str, Any] = field(default_factory=dict)  # fields of :class:`l2h.Money`, which stands for all of these
    sync: tuple[str, ...] = ("1",)  # links from the server to the rejector (recipe ``paper``), one rejector each
    client_options: dict[str, Any] = field(default_factory=dict)
    server_options: dict[str, Any] = field(default_factory=dict)  # of several servers by name
    rejector_options: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    # What a client and a server that are files are fed, as fields of :class:`l2h.Preprocessing`.
    client_preprocessing: dict[str, Any] = field(default_factory=dict)
    server_preprocessing: dict[str, Any] = field(default_factory=dict)
    client_output: str | None = None  # what the scores of a client that is a file are: ``probability`` or ``logit``
    server_output: str | None = None
    client_accuracy: float | None = None  # what is known of the client's
    method: str | None = None  # the one that trains the rejector; None for the one that loss and rejector spell
    method_files: tuple[str, ...] = ()  # Python files that register methods
    client_features: str | None = None  # a tensor inside the client, ``auto`` or ``none``; None: what it gives out
    budget: str | None = None  # of the rejector, as :class:`l2h.budgets.Budget` reads it; None for the default

    def __post_init__(self) -> None:
        if self.money:
            paid = Money(**self.money).costs
            by_server = {} if isinstance(paid, Costs) else {name: one.as_dict() for name, one in paid.items()}
            one = paid if isinstance(paid, Costs) else next(iter(paid.values()))
            for name, value in {"c_1": (one.c_1,), "c_e": (one.c_e,), "prices": by_server}.items():
                object.__setattr__(self, name, value)
        cost_grid(self.c_1, self.c_e)
        if not 0 < self.client_share <= 1:
            raise SettingsError(f"client_share={self.client_share} must be a share above 0 and at most 1")
        if not 0 < self.calibration < 1:
            raise SettingsError(f"calibration={self.calibration} must be a share above 0 and below 1")
        # A misspelt name is refused here, before anything is written or trained.
        if self.client not in STAND_INS and not Path(self.client).suffix:
            known = ", ".join(STAND_INS)
            raise UnknownNameError(
                f"unknown client {self.client!r}; known: {known}, or a file (.onnx, .tflite, .pt, .pt2)"
            )
        self._check_servers()
        for who, models, names in (
            ("client", [self.client], STAND_INS),
            ("server", [*self.named_servers.values()], NAMES),
        ):
            self.feed_of(who)
            given = [name for name in _OF_FILES if getattr(self, f"{who}_{name}", None)]
            # What is fed to a server that is asked is its own affair.
            asked = [is_remote(model) and given[:1] == ["preprocessing"] for model in models]
            if given and all(model in names or own for model, own in zip(models, asked, strict=True)):
                flag = given[0].replace("preprocessing", "scale, -mean, -std, -size or -layout")
                raise SettingsError(f"--{who}-{flag} is for a {who} that is a file, and {', '.join(models)} is none")
        method, rejector = choose_method(self.learned, self.rejector, self.settings)
        object.__setattr__(self, "rejector", rejector)
        check_method(method, len(self.named_servers), self.second_opinion, rejector, self.settings.recipe)
        choose_budget(self.budget, self.rejector or "attached", self.rejector_options, self.settings.recipe)
        if self.second_opinion:
            check_student(self.rejector_options)
        check_wanted(self.client_features, self.rejector or "attached")

    def _check_servers(self) -> None:
        servers = self.named_servers
        for name in self.servers:
            check_name(name)
        for name, model in servers.items():
            with about(f"--server {name}" if self.servers else None):
                _check_server(model)
        if self.prices:
            check_prices(self.prices, servers, "--request-cost" if self.money else "--price")
        if self.prices and len(servers) == 1:  # those of the only server are the prices of the system
            only = Costs.from_dict(next(iter(self.prices.values())))
            for name, value in {"c_1": (only.c_1,), "c_e": (only.c_e,), "prices": {}}.items():
                object.__setattr__(self, name, value)
        for name in ("server_version", "server_batch", "server_cache"):
            if getattr(self, name) is not None and not any(map(is_remote, servers.values())):
                flag = name.replace("_", "-")
                raise SettingsError(
                    f"--{flag} goes with a server that is asked: --server https://... or module:function"
                )

    @property
    def named_servers(self) -> dict[str, str]:
        """Return the servers by name; a single one without a name is called ``server``."""
        return dict(self.servers) or {SERVER.name: self.server}

    @property
    def learned(self) -> Learned | None:
        for file in self.method_files:
            methods.load_file(file)
        return None if self.method is None else methods.find_learned(self.method)

    @property
    def costs(self) -> list[Costs]:
        paid = Money(**self.money).costs if self.money else None
        return [paid] if isinstance(paid, Costs) else cost_grid(self.c_1, self.c_e)

    @property
    def reported_costs(self) -> list[AnyCosts | Money]:
        """Return the prices to evaluate at: the money, those of each server, or the grid."""
        if self.money:
            return [Money(**self.money)]
        if self.prices:
            return [{name: Costs.from_dict(self.prices[name]) for name in self.named_servers}]
        return [*self.costs]

    @property
    def specs(self) -> list[RejectorSpec]:
        """Return a rejector for every price and link; one for all prices where it is priced."""
        settings = self.settings
        if settings.recipe != "paper" and self.sync != ("1",):
            raise SettingsError("--sync goes with --recipe paper: the default recipe finishes the server first")
        if len(set(self.sync)) != len(self.sync):
            raise SettingsError(f"--sync names a link twice: {', '.join(self.sync)}")
        for sync in self.sync:
            parse_link(sync)  # a trace that cannot be read is refused here, before anything is written or trained
        specs = choose_method(self.learned, self.rejector, settings)[0].specs(self.costs)
        return [spec if spec.costs is None else replace(spec, sync=sync) for spec in specs for sync in self.sync]

    def as_dict(self) -> dict[str, Any]:
        # What version 0.1 did not know is left out where it is not used.
        values = {name: value for name, value in asdict(self).items() if value or not name.endswith(_NEWER)}
        values["settings"] = self.settings.as_dict()
        return {name: value for name, value in values.items() if name != "server" or not self.servers}

    def make_server(self, model: str | None = None) -> Classifier | str:
        """Return what :class:`l2h.HelpSystem` takes as a server, by default the plan's only one.

        The key of an address is that of the environment.
        """
        model = model or self.server
        if model in NAMES or model.startswith(SKLEARN):
            return model
        server: Any = model
        if is_remote(server):
            given = {"version": self.server_version, "batch": self.server_batch, "cache": self.server_cache}
            options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            server = RemoteServer(server, key=given_key(), **options)
        feed = Preprocessing() if is_remote(model) else self.feed_of("server")
        return as_client(server, preprocessing=feed, output=self.server_output)

    def feed_of(self, who: str) -> Preprocessing:
        """Return what the user says that the client or the server is fed."""
        return Preprocessing.from_dict(getattr(self, f"{who}_preprocessing"))


def require_known(named: Iterable[str], servers: Iterable[str], flag: str) -> None:
    """Refuse what names a server that does not exist."""
    unknown = [name for name in named if name not in set(servers)]
    if unknown:
        raise SettingsError(f"{flag} {unknown[0]}=...: no server is called so; the servers are {', '.join(servers)}")


def check_prices(named: Collection[str], servers: Iterable[str], flag: str = "--price") -> None:
    """Refuse prices that name a server that does not exist, or leave one out."""
    require_known(named, servers, flag)
    for name in servers:
        if name not in named:
            raise SettingsError(f"no price for {name}: give {flag} {name}={'C_E' if flag == '--price' else 'COST'} too")


def _check_server(model: str) -> None:
    if model.startswith(SKLEARN):
        find_estimator(model)
    elif model not in NAMES and not is_remote(model) and not Path(model).suffix:
        known = f"{', '.join(NAMES)}, sklearn:NAME, a file (.onnx), an address (https://...), or module:function"
        raise UnknownNameError(f"unknown model {model!r}; known: {known}")


def plan_of(training: Mapping[str, Any]) -> Plan:
    """Return the plan whose plain values ``config.json`` holds under ``training``."""
    names = {f.name for f in fields(Plan)}
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in training.items() if n in names}
    values["settings"] = Settings.from_dict(training["settings"])
    return Plan(**values)


def division_of(training: Mapping[str, Any]) -> Plan:
    """Return as much of such a plan as says how samples are divided; no file that it names is loaded or run."""
    values = {name: training[name] for name in ("data", "client", "client_share", "calibration") if name in training}
    return Plan(**values, settings=Settings.from_dict(training["settings"]))


def with_augment(plan: Plan, dataset: Dataset, augment: str | None) -> Plan:
    """Return the plan with this augmentation; None: the plan's own, or else what suits the data."""
    if augment is None:
        augment = plan.settings.augment if plan.settings.augment != "none" else dataset.augment
    return replace(plan, settings=replace(plan.settings, augment=augment))


def demo_plan(seed: int = 0, c_1: tuple[float, ...] = (1.0,), c_e: tuple[float, ...] = (0.1,)) -> Plan:
    """Return the demo's plan: that of the digits, with a rejector of the default budget."""
    plan = digits_plan(seed, c_1, c_e)
    return replace(plan, rejector_options={}, settings=replace(plan.settings, rejector=None))


def digits_plan(seed: int = 0, c_1: tuple[float, ...] = (1.0,), c_e: tuple[float, ...] = (0.1,)) -> Plan:
    """Return the plan of comparisons on digits: a decision tree of old samples as the client, a small convolutional
    net as the server, LeNet-5 as the rejector's trunk.
    """
    server = StageSettings(epochs=40, batch=64, optimizer="adamw", lr=3e-3, weight_decay=1e-2)
    rejector = StageSettings(epochs=30, batch=128, optimizer="adamw", lr=2e-3, weight_decay=1e-2)
    return Plan(
        data="digits",
        client="tree",
        client_share=0.3,
        calibration=0.15,
        server="lenet5",
        c_1=c_1,
        c_e=c_e,
        server_options={"width": 4},
        rejector_options={"width": 1},
        settings=Settings(seed=seed, augment="shift", copies=4, threads=1, server=server, rejector=rejector),
    )
