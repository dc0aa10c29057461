"""``l2h train``: train a system around the user's client and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from l2h.cli import options as shared
from l2h.cli.options import (
    MoneyOptions,
    Prices,
    Texts,
    by_name,
    price_option,
    read_prices,
    run_option,
    takes_groups,
    training_option,
)
from l2h.cli.output import log, print_evaluations
from l2h.cli.tracking import TrackingOptions
from l2h.errors import SettingsError

if TYPE_CHECKING:
    from l2h.data import Dataset
    from l2h.experiments.plan import Plan
    from l2h.experiments.runs import RunTarget
    from l2h.money import Money
    from l2h.system import HelpSystem
    from l2h.training import Progress

_feed = partial(typer.Option, rich_help_panel="What client and server files are fed")
_two = partial(typer.Option, rich_help_panel="Two programs over a network")
_api = partial(typer.Option, rich_help_panel="Somebody's API as the server")


@dataclass(frozen=True)
class ModelOptions:
    """The data, and who answers; the names are those of :class:`l2h.experiments.plan.Plan`."""

    data: Annotated[
        str | None,
        Option(
            "--data",
            "-d",
            help="digits, an .npz, a table (.csv or Parquet, with --target), an image folder, Hugging Face Parquet "
            "(FILE, or DIR/NAME for NAME-train.parquet), "
            "CIFAR python batches, or SVHN .mat.",
        ),
    ] = None
    test: shared.TestPart = None
    target: shared.Target = None
    limit: shared.Limit = None
    size: shared.Size = None
    client: Annotated[
        str,
        Option(
            "--client",
            "-m",
            help="The classifier that cannot change: an .onnx, .tflite, .pt (TorchScript) or .pt2 file; or a stand-in "
            "trained here first: tree, lenet5, alexnet, vit, mlp.",
        ),
    ] = "lenet5"
    client_share: Annotated[
        float, Option(help="Share of the training samples a stand-in client is trained on; below 1 they are its own.")
    ] = 1.0
    server: Annotated[
        Texts,
        Option(
            "--server",
            "-e",
            help="lenet5, alexnet, vit or mlp; sklearn:NAME, a scikit-learn classifier such as "
            "sklearn:HistGradientBoostingClassifier (--option server.max_iter=50); the .onnx file of a server kept "
            "as is; or somebody's API: an address of the Open Inference Protocol (https://...), or module:function, "
            "a function that asks it. Several: NAME=MODEL, repeated. (default: alexnet)",
        ),
    ] = None
    second_opinion: Annotated[
        bool,
        Option("--second-opinion", help="Let the rejector's student answer too, where it is more likely right."),
    ] = False
    rejector: Annotated[
        str | None,
        Option("--rejector", "-r", help="attached (sees the client's scores) or separate. (default: attached)"),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            help="What the rejector may cost the device: 0.3 (times the client's multiply-adds), 200k (multiply-adds) "
            "or 50us (time here, one thread). (default: 1)"
        ),
    ] = None
    client_features: Annotated[
        str | None,
        Option(
            help="What the rejector reads of a client that is a torch module or an ONNX file: a tensor inside it by "
            "its name, auto (the one that says most) or none. (default: what the client gives out)"
        ),
    ] = None
    method: Annotated[
        str | None,
        Option(help="Instead of --loss and --rejector, a method of l2h compare that learns: two-stage-confidence."),
    ] = None
    method_files: shared.MethodFiles = None
    calibration: Annotated[float, Option(help="Share of the training samples kept for calibration.")] = 0.1


@dataclass(frozen=True)
class ApiOptions:
    """How a server that is asked, not trained, is asked; the names are those of :class:`l2h.experiments.plan.Plan`."""

    server_version: Annotated[
        str | None, _api(help="Your word for the API's version: answers kept under another are not used.")
    ] = None
    server_batch: Annotated[int | None, _api(help="Inputs per call. (default: 64)", min=1)] = None
    server_cache: Annotated[
        str | None, _api(help="Folder of the answers, shared by all runs that name it. (default: the run folder)")
    ] = None


@dataclass(frozen=True)
class FeedOptions:
    """What models that are files are fed, and how their output is read."""

    client_scale: Annotated[
        str | None,
        _feed(
            help="What the pixels of a client file become: 0..1, -1..1, 0..255 or imagenet (its mean and std). "
            "(default: all are tried on labelled samples, and the best is taken)"
        ),
    ] = None
    client_mean: Annotated[str | None, _feed(help="Subtracted after scaling to 0..1: 0.5, or one per channel.")] = None
    client_std: Annotated[str | None, _feed(help="What that is divided by: 0.5, or 0.229,0.224,0.225.")] = None
    client_size: Annotated[
        str | None,
        _feed(help="Height and width that the client takes: 224, or 224x160. (default: what its file declares)"),
    ] = None
    client_layout: Annotated[str | None, _feed(help="NCHW or NHWC. (default: what its file declares)")] = None
    client_output: Annotated[
        str | None, _feed(help="What the client's scores are: probability or logit. (default: their values tell)")
    ] = None
    client_accuracy: Annotated[
        float | None, _feed(help="The client's share of right answers, if you know it: 0.91. Far less gets a warning.")
    ] = None
    server_scale: Annotated[str | None, _feed(help="As --client-scale, for a server that is a file.")] = None
    server_mean: Annotated[str | None, _feed(help="As --client-mean.")] = None
    server_std: Annotated[str | None, _feed(help="As --client-std.")] = None
    server_size: Annotated[str | None, _feed(help="As --client-size.")] = None
    server_layout: Annotated[str | None, _feed(help="As --client-layout.")] = None
    server_output: Annotated[str | None, _feed(help="As --client-output.")] = None


@dataclass(frozen=True)
class OutcomeOptions:
    """Answerers of which only the outcomes are known, instead of data, client and server."""

    outcomes: Annotated[
        str | None,
        Option(
            "--outcomes",
            rich_help_panel="Outcomes only",
            help="Instead of --data: a .parquet or .csv table with the columns client_right and server_right, for "
            "answerers that are not classifiers, such as two language models. Trains a router.",
        ),
    ] = None
    text_column: shared.TextColumn = None


@dataclass(frozen=True)
class RunOptions:
    """Where the run goes, and how it is reported."""

    out: Annotated[Path, run_option("--out", "-o", help="The run folder.")]
    resume: Annotated[bool, run_option("--resume", help="Go on with the interrupted run in the folder.")] = False
    force: Annotated[bool, run_option("--force", help="Replace the run that is in the folder.")] = False
    checkpoint_every: Annotated[int, run_option(help="Epochs between two checkpoints.", min=1)] = 1
    as_json: Annotated[bool, run_option("--json", help="Print the metrics as JSON: a list, one per price.")] = False


@dataclass(frozen=True)
class TrainingOptions:
    """The grid of prices, and how the server and the rejector are trained."""

    c_1: Annotated[
        Prices, price_option("--c-1", help="Extra cost of a wrong remote answer; repeat for a grid. (default: 1)")
    ] = None
    c_e: Annotated[Prices, price_option("--c-e", help="Price of a request; repeat for a grid. (default: 0.1)")] = None
    price: Annotated[
        Texts,
        price_option("--price", help="Of several servers, instead of these: NAME=C_E or NAME=C_E:C_1, one per server."),
    ] = None
    sync: Annotated[
        Texts,
        training_option(
            "--sync",
            help="With --recipe paper: when copies of the server reach the rejector: S in steps, epoch, "
            "trace:FILE.csv, onoff:10:40 (mean steps up and down); repeat for several beside each other. (default: 1)",
        ),
    ] = None
    recipe: Annotated[str, training_option(help="default, or paper: Algorithm 1 step by step.")] = "default"
    loss: Annotated[
        str | None,
        training_option(
            help="priced (any price at run time), shifted, swapped or paper. (default: priced; recipe paper: paper)"
        ),
    ] = None
    honest: Annotated[
        str,
        training_option(help="Samples for the rejector that the server has not fitted: auto, holdout, crossfit, none."),
    ] = "auto"
    augment: Annotated[
        str | None,
        training_option(help="none, shift or flip+shift. (default: what suits the data; recipe paper: none)"),
    ] = None
    seed: Annotated[int, training_option(help="Seed of everything drawn.", min=0)] = 0
    device: shared.Device = "auto"
    precision: shared.Precision = "fp32"
    set_: shared.Set = None
    option: shared.ModelOption = None


@dataclass(frozen=True)
class HostOptions:
    """One side of Algorithm 2 alone, and how it reaches the other."""

    role: Annotated[str | None, _two(help="One side of Algorithm 2 alone: server or client. With --recipe paper.")] = (
        None
    )
    listen: Annotated[str, _two(help="Role server: HOST:PORT to offer snapshots at.")] = "127.0.0.1:8470"
    server_url: Annotated[str | None, _two(help="Role client: where the server's side offers them.")] = None
    token_file: Annotated[Path | None, _two(help="The token both sides share. (default: L2H_TOKEN)")] = None
    send: Annotated[
        str, _two(help="weights, or answers: one bit per training sample, where both sides hold the same samples.")
    ] = "weights"
    publish_every: Annotated[
        int | None, _two(help="Role server: steps between two snapshots. (default: an epoch)", min=1)
    ] = None
    linger: Annotated[float, _two(help="Role server: seconds to stay after the training.", min=0)] = 30.0
    poll: Annotated[float, _two(help="Role client: seconds between two checks for a snapshot.", min=0.01)] = 1.0


@takes_groups
def train(
    models: ModelOptions,
    api: ApiOptions,
    feeds: FeedOptions,
    only: OutcomeOptions,
    run: RunOptions,
    logs: TrackingOptions,
    training: TrainingOptions,
    money: MoneyOptions,
    hosts: HostOptions,
) -> None:
    """Train a server and a rejector around a client, and evaluate them on the test set.

    Example: [bold]l2h train --data digits --client tree --client-share 0.3 --server lenet5 --out runs/digits[/]

    Example: [bold]l2h train --role server --recipe paper --data digits --server lenet5 --out runs/server[/] on one
    host, [bold]l2h train --role client --server-url http://host:8470 --recipe paper --data digits --server lenet5
    --client tree --out runs/client[/] on another.

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --server alexnet --c-e 0.1 --c-e 0.2 --out
    runs/cifar10[/]

    Example: [bold]l2h train --data photos --client legacy.onnx --server https://host/v2/models/big --server-version
    2026-05 --server-batch 32 --out runs/api[/] asks somebody's API about every input once, with the key of the variable
    L2H_KEY; after a failure the same with --resume asks for the rest.

    Example: [bold]l2h train --data customers.csv --target left --client legacy.onnx --server mlp --out runs/left[/]

    Example: [bold]l2h train --data photos --size 224 --client mobilenet.onnx --client-scale imagenet --server alexnet
    --out runs/photos[/]

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --budget 0.5 --out runs/small[/]

    Example: [bold]l2h train --data digits --client tree --client-share 0.3 --server lenet5 --request-cost 0.002
    --error-cost 0.5 --currency EUR --per-day 10000 --out runs/paid[/] says what the system saves in money.

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --server box=lenet5 --server cloud=alexnet --price
    box=0.05 --price cloud=0.2:1.25 --second-opinion --out runs/two[/] for two servers, each at its own price.

    Example: [bold]l2h train --outcomes answers.parquet --text-column prompt --out runs/router[/] for two language
    models.
    """
    from l2h.experiments.plan import load_data, with_augment
    from l2h.experiments.runs import RunTarget

    target = RunTarget(run.out, run.force, run.resume, run.checkpoint_every)
    if only.outcomes is not None:
        return _train_router(models, only, run, logs, training, money, target)
    if models.data is None:
        raise typer.BadParameter("give --data, or --outcomes where only outcomes are known", param_hint="--data")
    plan = _plan(models, api, feeds, training, money)
    _ = plan.specs  # a bad price or link is refused before anything is trained
    dataset = load_data(plan)
    plan = with_augment(plan, dataset, training.augment or ("none" if training.recipe == "paper" else None))
    with logs.trackers(run.out) as trackers:
        system = _train(plan, dataset, target, hosts, trackers)
        if system is not None:
            _evaluate(system, dataset, plan, run, trackers)


def _evaluate(system: HelpSystem, dataset: Dataset, plan: Plan, run: RunOptions, trackers: Sequence[Progress]) -> None:
    from l2h.cli.bars import count_progress
    from l2h.experiments.evaluating import evaluate_plan
    from l2h.experiments.finished import Asking
    from l2h.report import write_run_page

    with count_progress("server: inputs asked") as asked:
        Asking(progress=asked).watch(system)
        evaluations = evaluate_plan(system, dataset, plan, run.out)
    page = write_run_page(evaluations, run.out)
    for tracker in trackers:
        tracker.evaluated(evaluations.results[0].report, page)
    print_evaluations(evaluations.results, run.as_json)
    if not run.as_json:
        log.info("The page with every number and picture: %s", page)


def _train_router(
    models: ModelOptions,
    only: OutcomeOptions,
    run: RunOptions,
    logs: TrackingOptions,
    training: TrainingOptions,
    money: MoneyOptions,
    target: RunTarget,
) -> None:
    from l2h.cli import routing
    from l2h.data.outcomes import TEXT_COLUMN
    from l2h.experiments.routing import RouterPlan

    if models.data is not None:
        raise typer.BadParameter("--outcomes and --data do not go together", param_hint="--outcomes")
    if training.price or models.second_opinion:
        raise typer.BadParameter("a router has one server, without a name, and no student", param_hint="--outcomes")
    if run.resume:
        raise typer.BadParameter("a router is trained in one go: --force starts anew", param_hint="--resume")
    plan = RouterPlan(
        outcomes=str(only.outcomes),
        text_column=only.text_column or TEXT_COLUMN,
        test=models.test,
        limit=models.limit,
        c_1=tuple(training.c_1 or (1.0,)),
        c_e=tuple(training.c_e or (0.1,)),
        seed=training.seed,
        money=_fields(money.read(training.c_e, training.c_1)),
    )
    with logs.trackers(run.out) as trackers:
        routing.train(plan, target, run.as_json, trackers)


def _fields(money: Money | None) -> dict[str, Any]:
    return {} if money is None else money.as_dict()


def _plan(
    models: ModelOptions, api: ApiOptions, feeds: FeedOptions, training: TrainingOptions, money: MoneyOptions
) -> Plan:
    from l2h.experiments.overrides import make_settings, parse_options, parse_preprocessing
    from l2h.experiments.plan import Plan
    from l2h.system.sizing import choose_budget

    server, prices = by_name(models.server, "--server") or "alexnet", read_prices(training.price)
    servers = {} if isinstance(server, str) else server
    if prices and (training.c_e or training.c_1):
        raise SettingsError("--price is of one server, --c-e and --c-1 of all: give the one or the other")
    options: dict[str, Any] = parse_options(training.option or [], servers)
    values = {name: getattr(training, name) for name in ("recipe", "honest", "seed", "device", "precision")}
    for who in ("client", "server"):
        texts = {name: getattr(feeds, f"{who}_{name}") for name in ("scale", "mean", "std", "size", "layout")}
        options[f"{who}_preprocessing"] = parse_preprocessing(texts, f"--{who}-")
    size = options["rejector_options"]
    budget = choose_budget(models.budget, models.rejector or "attached", size, training.recipe)
    sized = training.recipe == "default" and (budget is not None or size.get("trunk") == "separable")
    values["loss"] = training.loss or ("paper" if training.recipe == "paper" else "priced")
    first = server if isinstance(server, str) else next(iter(servers.values()))
    named = {"server": first, "servers": servers, "method_files": tuple(models.method_files or ())}
    return Plan(
        **vars(models) | vars(api) | named,
        c_1=tuple(training.c_1 or (1.0,)),
        c_e=tuple(training.c_e or (0.1,)),
        prices={name: costs.as_dict() for name, costs in prices.items()},
        money=_fields(money.read(training.c_e, training.c_1, training.price)),
        sync=tuple(training.sync or ("1",)),
        client_output=feeds.client_output,
        server_output=feeds.server_output,
        client_accuracy=feeds.client_accuracy,
        settings=make_settings(values, training.set_ or [], first, sized, len(servers) > 1),
        **options,
    )


def _train(
    plan: Plan, dataset: Dataset, target: RunTarget, hosts: HostOptions, trackers: Sequence[Progress]
) -> HelpSystem | None:
    """Train all of the system, or one side of it; None where there is no system to evaluate here."""
    from l2h.cli.bars import training_progress
    from l2h.experiments.plan import train_run

    if hosts.role not in (None, "server", "client"):
        raise typer.BadParameter(f"{hosts.role!r} is unknown; known: server, client", param_hint="--role")
    if hosts.role == "client" and hosts.server_url is None:
        raise typer.BadParameter("--role client needs the server's side", param_hint="--server-url")
    with training_progress(*trackers) as progress:
        progress.begin(plan.as_dict())
        if hosts.role is None:
            return train_run(plan, dataset, target, progress)
        from l2h.experiments.two_hosts import train_client_side, train_server_side
        from l2h.training.hosts import HostLink, read_token

        token, url, every = read_token(hosts.token_file), hosts.server_url or "", hosts.publish_every
        link = HostLink(token, hosts.send, hosts.listen, url, every, hosts.linger, hosts.poll)
        if hosts.role == "server":
            train_server_side(plan, dataset, target, link, progress)
            return None
        system = train_client_side(plan, dataset, target, link, progress)
    if system is None:
        evaluate = f"l2h evaluate {target.folder} --server-run RUN"
        log.info("trained on answers alone: %s, with RUN the folder of the server", evaluate)
    return system
