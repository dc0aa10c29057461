"""``l2h train``: train a system around the user's client and data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from l2h.cli.options import MoneyOptions, by_name, read_prices, takes_groups
from l2h.cli.output import log, print_evaluations
from l2h.cli.tracking import TrackingOptions
from l2h.cli.train_options import (
    ApiOptions,
    ClusterOptions,
    FeedOptions,
    HostOptions,
    ModelOptions,
    OutcomeOptions,
    RunOptions,
    TrainingOptions,
)
from l2h.errors import SettingsError

if TYPE_CHECKING:
    from l2h.data import Dataset
    from l2h.experiments.plan import Plan
    from l2h.experiments.runs import RunTarget
    from l2h.money import Money
    from l2h.system import HelpSystem
    from l2h.training import Progress


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
    cluster: ClusterOptions,
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

    Example: [bold]l2h train --data 'shards/train-{000..127}.tar' --test 'shards/val-*.tar' --size 224 --cache
    /scratch/decoded --on-error skip --client mobilenet.onnx --server vit --out runs/large[/] for more images than fit
    into memory: they are decoded once and read from the disk.

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --budget 0.5 --out runs/small[/]

    Example: [bold]l2h train --data digits --client tree --client-share 0.3 --server lenet5 --request-cost 0.002
    --error-cost 0.5 --currency EUR --per-day 10000 --out runs/paid[/] says what the system saves in money.

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --server box=lenet5 --server cloud=alexnet --price
    box=0.05 --price cloud=0.2:1.25 --second-opinion --out runs/two[/] for two servers, each at its own price.

    Example: [bold]l2h train --outcomes answers.parquet --text-column prompt --out runs/router[/] for two language
    models.
    """
    from l2h.cli.bars import count_progress
    from l2h.experiments.carry_out import help_to_train, load_data, require_models
    from l2h.experiments.plan import with_augment
    from l2h.experiments.runs import CONFIG, RunTarget
    from l2h.training import data_parallel

    target = RunTarget(run.out, run.force, run.resume, run.checkpoint_every)
    if only.outcomes is not None:
        return _train_router(models, only, run, logs, training, money, target)
    if models.data is None:
        raise typer.BadParameter("give --data, or --outcomes where only outcomes are known", param_hint="--data")
    training = with_file(training)
    plan = read_plan(models, api, feeds, training, money)
    _ = plan.specs  # a bad price or link is refused before anything is trained
    with data_parallel(plan.settings.device) as group:
        _refuse_what_does_not_go_together(group.size, cluster, hosts)
        if not group.first:
            log.setLevel(logging.ERROR)  # the first one prints and writes
        if group.restarted and (run.out / CONFIG).exists():
            target = replace(target, resume=True)
        if group.first:  # before much is read
            require_models(plan)
            target.require_usable()
        with count_progress("images decoded") as decoded:
            dataset = load_data(plan, run.stream, decoded)
        plan = with_augment(plan, dataset, training.augment or ("none" if training.recipe == "paper" else None))
        if not group.first:
            return help_to_train(plan, dataset)
        with logs.trackers(run.out) as trackers:
            system = _train(plan, dataset, target, cluster, hosts, run.stream, trackers)
            if system is not None:
                _evaluate(system, dataset, plan, run, trackers)


def _refuse_what_does_not_go_together(processes: int, cluster: ClusterOptions, hosts: HostOptions) -> None:
    if hosts.role is not None and (processes > 1 or cluster.on):
        raise SettingsError("--role is one side of Algorithm 2, in one process: start one, without --on")
    if cluster.on and processes > 1:
        raise SettingsError("--on ray starts processes by itself: leave out torchrun")
    if cluster.processes and not cluster.on:
        raise SettingsError("--processes goes with --on ray; here: torchrun --nproc-per-node 2 -m l2h train ...")


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


def with_values(training: TrainingOptions, values: Mapping[str, Any], *, behind: bool = False) -> TrainingOptions:
    """Return the options with settings and options of models by name, before those given or ``behind`` them."""
    from l2h.experiments.overrides import as_texts, augment_of

    sets, options = as_texts({name: value for name, value in values.items() if name != "augment"})
    given = training.set_ or [], training.option or []
    both = [[*texts, *own] if behind else [*own, *texts] for own, texts in zip(given, (sets, options), strict=True)]
    augments = [training.augment, augment_of(values)]
    augment = next((one for one in (augments if behind else augments[::-1]) if one is not None), None)
    return replace(training, set_=both[0], option=both[1], augment=augment)


def with_file(training: TrainingOptions) -> TrainingOptions:
    """Return the options with those of the file that ``--settings`` names behind them."""
    from l2h.experiments.overrides import read_values

    path = training.settings_file
    if path is None:
        return training
    values = read_values(path)
    for name in ("loss", "honest"):
        if getattr(training, name) != getattr(TrainingOptions, name):
            values.pop(name, None)
    return with_values(training, values, behind=True)


def read_plan(
    models: ModelOptions, api: ApiOptions, feeds: FeedOptions, training: TrainingOptions, money: MoneyOptions
) -> Plan:
    """Return the plan of these options."""
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
    plan: Plan,
    dataset: Dataset,
    target: RunTarget,
    cluster: ClusterOptions,
    hosts: HostOptions,
    stream: bool | None,
    trackers: Sequence[Progress],
) -> HelpSystem | None:
    """Train all of the system, or one side of it; None where there is no system to evaluate here."""
    from l2h.cli.bars import training_progress
    from l2h.experiments.carry_out import train_run

    if hosts.role not in (None, "server", "client"):
        raise typer.BadParameter(f"{hosts.role!r} is unknown; known: server, client", param_hint="--role")
    if hosts.role == "client" and hosts.server_url is None:
        raise typer.BadParameter("--role client needs the server's side", param_hint="--server-url")
    with training_progress(*trackers) as progress:
        progress.begin(plan.as_dict())
        if cluster.on is not None:
            from l2h.experiments.on_ray import train_on_ray

            return train_on_ray(plan, target, cluster.on, cluster.processes, stream, progress)
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
