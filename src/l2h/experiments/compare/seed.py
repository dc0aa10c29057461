"""All methods on one seed: one division of the data, one client, one server, and every method fitted on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from l2h import metrics
from l2h.budgets import Budget
from l2h.costs import BoolArray, FloatArray
from l2h.data import Dataset
from l2h.data.outcomes import OutcomeTable
from l2h.decision import RejectorSpec
from l2h.errors import DataError
from l2h.experiments.carry_out import SampleParts, divide, load_data, make_client, make_system, working
from l2h.experiments.clusters import TaskRequest
from l2h.experiments.compare.outcomes import CLASSES, outcome_bench
from l2h.experiments.plan import Plan
from l2h.experiments.runs import read_arrays, write_arrays
from l2h.labels import LabelCodec
from l2h.methods import Bench, Learned, Method, Outcomes, ReferenceRule
from l2h.rows import digest
from l2h.system.sizing import size_method
from l2h.training import Context, Progress

RATES = np.linspace(0.0, 1.0, 201)
_BITS = ("remote", "as_published")


@dataclass(frozen=True)
class SeedStudy:
    """A plan over several seeds."""

    plan: Plan  # its seed is of no account
    seeds: tuple[int, ...]
    classes: tuple[str, ...] | None = None  # names of the classes to take; None for all

    def plan_of(self, seed: int) -> Plan:
        return replace(self.plan, settings=self.plan.settings.with_seed(seed))

    def on(self, request: TaskRequest) -> Self:
        """Return the study as a task runs it: with the device and the threads that it was given."""
        return replace(self, plan=replace(self.plan, settings=request.place(self.plan.settings)))

    def load(self, seed: int) -> Dataset:
        dataset = load_data(self.plan_of(seed)).numbered()
        return dataset if self.classes is None else take_classes(dataset, self.classes)

    def depends_on(self, **more: Any) -> dict[str, Any]:
        """Return what results depend on, but for the seed, as JSON has it."""
        plain: dict[str, Any] = json.loads(json.dumps({"training": self.plan_of(0).as_dict()} | more))
        del plain["training"]["settings"]["threads"]  # how many seeds run at once is of no account
        return plain


@dataclass(frozen=True)
class SeedResult:
    """What M methods decided on the n test samples of one seed, at C prices."""

    seed: int
    names: tuple[str, ...]  # of the methods
    test_digest: str  # tells test sets apart
    rest: int  # samples of the seed that are not tested
    client_correct: BoolArray  # (n,)
    server_correct: BoolArray  # (n,)
    remote: BoolArray  # (M, C, n), the decisions
    as_published: (
        BoolArray  # (M, C, n), by the rule of the method's own paper; where that is no other, ``remote`` again
    )
    has_published: BoolArray  # (M,), where it is another
    gain: FloatArray  # (M, C), frontier gain of the ranking; NaN where there is nothing to gain
    curve: FloatArray  # (M, 201), joint accuracy at :data:`RATES`, mean over the prices
    facts: dict[str, dict[str, float]]  # of each method: size, work, steps

    def save(self, path: Path) -> None:
        """Write an ``.npz`` without pickles, the decisions as bits."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        meta = {name: value for name, value in vars(self).items() if name not in arrays}
        write_arrays(path, meta, arrays | {name: np.packbits(arrays[name], axis=-1) for name in _BITS})

    @classmethod
    def load(cls, path: Path) -> SeedResult:
        with read_arrays(path, "its seed is run again") as (meta, arrays):
            n = len(arrays["client_correct"])
            for name in _BITS:
                arrays[name] = np.unpackbits(arrays[name], axis=-1, count=n).astype(bool)
            return cls(**meta | arrays | {"names": tuple(meta["names"])})


def run_seed(
    plan: Plan,
    dataset: Dataset | OutcomeTable,
    methods: Sequence[Method],
    *,
    progress: Progress | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> SeedResult:
    """Train client and server, then fit and judge every method; the plan's seed is the seed.

    A table of outcomes has no client and no server to train. ``done`` is called with ``"server"`` and then with each
    method's name as it is finished.
    """
    with working(plan, progress) as context:
        bench, test = prepare_seed(plan, dataset, methods, context)
        done("server")
        judged = {}
        for method in methods:
            judged[method.name] = judge(method, bench, test)
            done(method.name)
    return SeedResult(**header(plan, dataset, test), **stack_methods(judged))


def prepare_seed(
    plan: Plan, dataset: Dataset | OutcomeTable, methods: Sequence[Method], context: Context
) -> tuple[Bench, Outcomes]:
    """Return the bench of a seed with its server trained, and the test samples; give the methods their sizes."""
    for method in methods:
        method.check(classes_of(dataset))
    if isinstance(dataset, OutcomeTable):
        bench, test = outcome_bench(plan, dataset, context)
    else:
        bench = make_bench(plan, dataset, context)
        test = bench.outcomes(dataset.X_test, dataset.y_test)
    if plan.budget is not None:
        size_methods(methods, Budget.parse(plan.budget), bench)
    return bench, test


def header(plan: Plan, dataset: Dataset | OutcomeTable, test: Outcomes) -> dict[str, Any]:
    """Return what a :class:`SeedResult` holds beside the methods."""
    return {
        "seed": plan.settings.seed,
        "test_digest": digest(test.X, test.y),
        "rest": len(dataset) - len(test) if isinstance(dataset, OutcomeTable) else len(dataset.y_train),
        "client_correct": test.client_correct,
        "server_correct": test.server_correct,
    }


def stack_methods(judged: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what a :class:`SeedResult` holds of its methods, from what :func:`judge` gave of each by name."""
    stacked = ("remote", "as_published", "has_published", "gain", "curve")
    return {
        "names": tuple(judged),
        **{name: np.stack([one[name] for one in judged.values()]) for name in stacked},
        "facts": {name: one["facts"] for name, one in judged.items()},
    }


def classes_of(dataset: Dataset | OutcomeTable) -> int:
    """Return the number of classes; of outcomes there are two, right and wrong."""
    return CLASSES if isinstance(dataset, OutcomeTable) else dataset.num_classes


def make_bench(plan: Plan, dataset: Dataset, context: Context, parts: SampleParts | None = None) -> Bench:
    """Return the bench of a plan: its data divided (or as given), its client made and its server trained."""
    parts = parts or divide(dataset, plan)
    client = make_client(plan, dataset, parts, context)
    system = make_system(plan, dataset, client)
    job = system.prepare(*parts.train, specs=[RejectorSpec()], held_out_rows=parts.held_out_rows)
    return Bench(job, context, plan.costs, parts.calibration, plan.rejector_options)


def size_methods(methods: Iterable[Method], budget: Budget, bench: Bench) -> None:
    """Give every method that learns the largest net of a budget; those with nets of a kind get the same."""
    sized: dict[tuple[str, bool], Learned] = {}
    for method in (method for method in methods if isinstance(method, Learned)):
        same = sized.setdefault((method.net, method.student), method)
        if same is method:
            size_method(method, budget, bench.job)
        method.options, method.budget = same.options, same.budget


def judge(method: Method, bench: Bench, test: Outcomes) -> dict[str, Any]:
    """Fit a method, and return what it decides at every price, as :class:`SeedResult` has it of every method."""
    rule, prices = method.fit(bench), bench.costs
    client, server = test.client_correct, test.server_correct
    choices = [
        rule.decide_knowing(test, costs) if isinstance(rule, ReferenceRule) else rule.decide(test.inputs, costs)
        for costs in prices
    ]
    frontiers = [metrics.frontier(choice.score, client, server) for choice in choices]
    gains = [metrics.frontier_gain(f.area, client, server) for f in frontiers]
    remote = np.stack([choice.remote for choice in choices])
    published = [choice.as_published for choice in choices if choice.as_published is not None]
    has_published = len(published) == len(choices)
    return {
        "remote": remote,
        "as_published": np.stack(published) if has_published else remote,
        "has_published": has_published,
        "gain": np.array([np.nan if gain is None else gain for gain in gains]),
        "curve": np.mean([np.interp(RATES, f.rate, f.accuracy) for f in frontiers], axis=0),
        "facts": rule.facts(test.inputs, test.y),
    }


def take_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return the samples of some classes alone, counted from 0 in the order of ``names``."""
    for name in names:
        if name not in dataset.class_names:
            known = ", ".join(dataset.class_names[:20])
            raise DataError(f"{dataset.name} has no class {name!r}; it has: {known}")
    if len(names) < 2 or len(set(names)) != len(names):
        raise DataError(f"classes={list(names)}: name two or more, each once")
    label = {dataset.class_names.index(name): k for k, name in enumerate(names)}

    def part(X: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        chosen = np.isin(y, list(label))
        return X[chosen], np.array([label[int(one)] for one in y[chosen]], dtype=np.int64)

    X_train, y_train = part(dataset.X_train, dataset.y_train)
    X_test, y_test = part(dataset.X_test, dataset.y_test)
    name, classes = f"{dataset.name} ({' or '.join(names)})", tuple(names)
    return replace(
        dataset,
        name=name,
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
        class_names=classes,
        labels=LabelCodec(classes),
    )
