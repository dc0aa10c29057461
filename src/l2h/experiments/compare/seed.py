"""All methods on one seed: one division of the data, one client, one server, and every method fitted on them."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import metrics
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.data import Dataset
from l2h.decision import RejectorSpec
from l2h.errors import DataError, RunError
from l2h.experiments.plan import Plan, SampleParts, divide, make_client, make_system
from l2h.files import digest, write_atomically
from l2h.methods import Bench, Method, Outcomes, ReferenceRule, Rule
from l2h.training import Context, Progress, Silent, pick_device
from l2h.training.loop import repeatable

RATES = np.linspace(0.0, 1.0, 201)


@dataclass(frozen=True)
class SeedResult:
    """What M methods decided on the n test samples of one seed, at C prices.

    Attributes:
        seed: of everything drawn.
        names: of the methods.
        test_digest: tells test sets apart.
        client_correct: bool (n,).
        server_correct: bool (n,).
        remote: bool (M, C, n), the decisions.
        as_published: bool (M, C, n), by the rule of the method's own paper; where that is no other, ``remote`` again.
        has_published: bool (M,), where it is another.
        gain: (M, C), frontier gain of the ranking; NaN where there is nothing to gain.
        curve: (M, 201), joint accuracy at :data:`RATES`, mean over the prices.
        facts: of each method: size, work, steps.
    """

    seed: int
    names: tuple[str, ...]
    test_digest: str
    client_correct: BoolArray
    server_correct: BoolArray
    remote: BoolArray
    as_published: BoolArray
    has_published: BoolArray
    gain: FloatArray
    curve: FloatArray
    facts: dict[str, dict[str, float]]

    def save(self, path: Path) -> None:
        """As an ``.npz`` without pickles."""
        buffer = io.BytesIO()
        meta = {"seed": self.seed, "names": self.names, "test_digest": self.test_digest, "facts": self.facts}
        np.savez_compressed(
            buffer,
            meta=np.array(json.dumps(meta)),
            client_correct=self.client_correct,
            server_correct=self.server_correct,
            remote=np.packbits(self.remote, axis=-1),
            as_published=np.packbits(self.as_published, axis=-1),
            has_published=self.has_published,
            gain=self.gain,
            curve=self.curve,
        )
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> SeedResult:
        """The inverse of :meth:`save`.

        Raises:
            RunError: the file is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            meta = json.loads(str(arrays.pop("meta")))
            n = len(arrays["client_correct"])
            for name in ("remote", "as_published"):
                arrays[name] = np.unpackbits(arrays[name], axis=-1, count=n).astype(bool)
            return cls(**{**meta, "names": tuple(meta["names"])}, **arrays)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} is damaged: {error}; remove it, and its seed is run again") from error


def run_seed(
    plan: Plan,
    dataset: Dataset,
    methods: Sequence[Method],
    *,
    progress: Progress | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> SeedResult:
    """Train client and server, then fit and judge every method.

    Args:
        plan: data, client, server, prices and settings; its seed is the seed.
        dataset: of the plan.
        methods: what to compare.
        progress: who is told of each training.
        done: called with ``"server"`` and then with each method's name as it is finished.

    Raises:
        SettingsError: a method is made for another number of classes.
        DataError: too few samples.
    """
    for method in methods:
        method.check(dataset.num_classes)
    device = pick_device(plan.settings.device)
    context = Context(plan.settings, device, progress=progress or Silent())
    with repeatable(plan.settings, device):
        bench = make_bench(plan, dataset, context)
        test = bench.outcomes(dataset.X_test, dataset.y_test)
        done("server")
        judged = []
        for method in methods:
            judged.append(_judge(method.fit(bench), test, plan.costs))
            done(method.name)
    published = np.array([one.as_published is not None for one in judged])
    return SeedResult(
        seed=plan.settings.seed,
        names=tuple(method.name for method in methods),
        test_digest=digest(dataset.X_test, dataset.y_test),
        client_correct=test.client_correct,
        server_correct=test.server_correct,
        remote=np.stack([one.remote for one in judged]),
        as_published=np.stack([one.remote if one.as_published is None else one.as_published for one in judged]),
        has_published=published,
        gain=np.stack([one.gain for one in judged]),
        curve=np.stack([one.curve for one in judged]),
        facts={method.name: one.facts for method, one in zip(methods, judged, strict=True)},
    )


def make_bench(plan: Plan, dataset: Dataset, context: Context, parts: SampleParts | None = None) -> Bench:
    """The plan's data divided (or as given), its client made and its server trained."""
    parts = parts or divide(dataset, plan)
    client = make_client(plan, dataset, parts, context)
    system = make_system(plan, dataset, client)
    job = system.prepare(*parts.train, specs=[RejectorSpec()], held_out_rows=parts.held_out_rows)
    return Bench(job, context, plan.costs, parts.calibration, plan.rejector_options)


@dataclass(frozen=True)
class _Judged:
    remote: BoolArray
    as_published: BoolArray | None
    gain: FloatArray
    curve: FloatArray
    facts: dict[str, float]


def _judge(rule: Rule, test: Outcomes, prices: Sequence[Costs]) -> _Judged:
    client, server = test.client_correct, test.server_correct
    choices = [
        rule.decide_knowing(test, costs) if isinstance(rule, ReferenceRule) else rule.decide(test.inputs, costs)
        for costs in prices
    ]
    frontiers = [metrics.frontier(choice.score, client, server) for choice in choices]
    gains = [metrics.frontier_gain(f.area, client, server) for f in frontiers]
    published = [choice.as_published for choice in choices]
    return _Judged(
        remote=np.stack([choice.remote for choice in choices]),
        as_published=None if any(p is None for p in published) else np.stack(published),  # type: ignore[arg-type]
        gain=np.array([np.nan if gain is None else gain for gain in gains]),
        curve=np.mean([np.interp(RATES, f.rate, f.accuracy) for f in frontiers], axis=0),
        facts=rule.facts(test.inputs, test.y),
    )


def take_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The samples of some classes alone, counted from 0 in the order of ``names``.

    Raises:
        DataError: fewer than two, one twice, or one that the data do not have.
    """
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
    return replace(
        dataset,
        name=f"{dataset.name} ({' or '.join(names)})",
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
        class_names=tuple(names),
    )
