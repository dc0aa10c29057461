"""The seeds of a comparison on a cluster: a task per seed for client and server, then one per group of methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2h import methods
from l2h.experiments.carry_out import working
from l2h.experiments.clusters import ClusterWork, RayCluster
from l2h.experiments.compare.outcomes import without_answerers
from l2h.experiments.compare.seed import SeedResult, header, judge, prepare_seed, stack_methods
from l2h.methods import Bench, Learned, Outcomes
from l2h.training.loop import repeatable

if TYPE_CHECKING:
    from l2h.experiments.compare.comparing import Comparison, Tell

_HEADER = ""  # no method's name


@dataclass(frozen=True)
class PreparedSeed:
    """What the methods of a seed are fitted on and judged on; it stays on the cluster while they are."""

    bench: Bench
    test: Outcomes
    sizes: Mapping[str, tuple[Any, Any]]  # of the net of each method that has one: its options, and its budget


def run_seeds_on(cluster: RayCluster, comparison: "Comparison", files: Mapping[int, Path], tell: "Tell") -> None:
    """Run seeds on a cluster, each into its file as soon as all of its methods are there."""
    request = cluster.request(comparison.plan.settings)
    study, groups = comparison.on(request), method_groups(comparison.methods)
    works = []
    for seed in files:
        parts = {group: partial(_judge_group, study, seed, group) for group in groups}
        works.append(ClusterWork(seed, parts, partial(prepare_task, study, seed)))
    found: dict[int, dict[str, Any]] = {seed: {} for seed in files}
    for seed, group, value in cluster.run(works, request):
        of_seed = found[seed]
        of_seed |= {_HEADER: value} if group is None else value
        for what in group or ("server",):
            tell(seed, what)
        if len(of_seed) == 1 + len(comparison.methods):
            judged = {name: of_seed[name] for name in comparison.methods}
            SeedResult(**of_seed[_HEADER], **stack_methods(judged)).save(files[seed])
            del found[seed]


def method_groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the methods in groups for one task each: every one that trains a net alone, all others together."""
    learned = [method.name for method in methods.get(names) if isinstance(method, Learned)]
    others = tuple(name for name in names if name not in learned)
    return [(name,) for name in learned] + ([others] if others else [])


def prepare_task(comparison: "Comparison", seed: int) -> tuple[PreparedSeed, dict[str, Any]]:
    """Train client and server of a seed; return what its methods need of them, and what its result holds of them."""
    plan = comparison.plan_of(seed)  # made anew, so that this process knows the methods of its files
    everyone = methods.get(comparison.methods)
    with working(plan) as context:
        dataset = comparison.read(seed)
        bench, test = prepare_seed(plan, dataset, everyone, context)
        sizes = {method.name: (method.options, method.budget) for method in everyone if isinstance(method, Learned)}
        return PreparedSeed(without_answerers(bench), test, sizes), header(plan, dataset, test)


def _judge_group(comparison: "Comparison", seed: int, names: tuple[str, ...], prepared: PreparedSeed) -> dict[str, Any]:
    plan = comparison.plan_of(seed)
    found = {}
    with repeatable(plan.settings, prepared.bench.context.device):
        for method in methods.get(names):
            if isinstance(method, Learned):
                method.options, method.budget = prepared.sizes[method.name]
            found[method.name] = judge(method, prepared.bench, prepared.test)
    return found
