"""The largest rejector within a budget of multiply-adds, by a search over its hidden layer, stem, width and depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from l2h.errors import ModelError
from l2h.models.networks import LeNet5
from l2h.models.registry import multiply_adds
from l2h.models.rejectors import PERCEPTRON, STUDENT_FEATURES
from l2h.models.separable import CHANNELS, SMALLEST, plan_trunk

HIDDEN = (128, 64, 32, 16)  # sizes of the head's hidden layer
HEAD_SHARE = 0.15  # of the budget that the head takes at most, where a smaller one exists
DEPTHS = range(1, 7)
STEP = 4  # channels between two widths: vector units work on several at once
WIDEST = 1024  # channels


@dataclass(frozen=True)
class Trunk:
    """A trunk that a rejector may have."""

    options: dict[str, Any]  # by which :func:`l2h.models.build_rejector` builds it
    multiply_adds: int
    features: int
    merit: float  # the one with the most is taken, of those within the budget


def within_budget(
    budget: float, kind: str, input_shape: tuple[int, ...], view_size: int, classes: int
) -> dict[str, Any]:
    """Return the options of the largest rejector whose multiply-adds for one input are at most ``budget``.

    Where no trunk fits, an attached rejector has none and reads the client's view alone. A budget of 0 gives a linear
    map of that view.

    Args:
        budget: in multiply-adds.
        kind: ``attached`` or ``separate``.
        input_shape: of one input.
        view_size: the length of the client's view.
        classes: K for a rejector with a student, else 0.

    Raises:
        ModelError: the smallest rejector needs more; the message says how much.
    """
    best: tuple[float, dict[str, Any]] | None = None
    smallest = 0
    for trunk in _trunks(input_shape, budget):
        for hidden in HIDDEN if kind == "attached" else (0,):
            head = _head(kind, trunk.features, view_size, classes, hidden)
            whole = trunk.multiply_adds + head
            smallest = min(smallest or whole, whole)
            if whole <= budget and (head <= HEAD_SHARE * budget or hidden in (0, HIDDEN[-1])):
                if best is None or trunk.merit > best[0]:
                    best = trunk.merit, trunk.options | ({"hidden": hidden} if kind == "attached" else {})
                break
    if best is not None:
        return best[1]
    if kind == "attached":
        plain = {hidden: _head(kind, 0, view_size, 0, hidden) for hidden in (*HIDDEN, 0)}
        smallest = plain[0]
        for hidden, cost in plain.items():
            if cost <= budget or (hidden == 0 and not budget):
                return {"width": 0.0, "hidden": hidden}
    raise ModelError(
        f"a budget of {budget:,.0f} multiply-adds cannot be met: the smallest rejector for inputs of shape "
        f"{input_shape} needs {smallest:,}"
    )


def _head(kind: str, features: int, view_size: int, classes: int, hidden: int) -> int:
    """Return the multiply-adds of a rejector beside its trunk's, as :mod:`l2h.models.rejectors` builds it."""
    if kind == "separate":
        return 2 * features
    said = view_size + (STUDENT_FEATURES + classes if classes else 0)
    return classes * features + (said + features + 2) * hidden + 2 * said


def _trunks(input_shape: tuple[int, ...], budget: float) -> Iterator[Trunk]:
    """Give the trunks for these inputs, the smallest always and no other that is far beyond the budget."""
    if len(input_shape) == 3 and min(input_shape[1:]) >= SMALLEST:
        stems = [2**power for power in range(10) if 4 * 2**power <= min(input_shape[1:])]
        for stem in reversed(stems):
            yield from _separable(input_shape, stem, budget)
        return
    for size in sorted({round(STEP * 1.1**step) for step in range(60)}):
        width = size / PERCEPTRON
        if len(input_shape) == 3 and min(input_shape[1:]) >= 4:
            net = LeNet5(input_shape, 1, width).to("meta")
            cost = multiply_adds(net, torch.zeros(1, *input_shape, device="meta")) - net.head.in_features
            features = net.head.in_features
        else:
            inputs = torch.Size(input_shape).numel()
            cost, features = size * (inputs + size), size
        yield Trunk({"width": width}, cost, features, cost)
        if cost > budget:
            return


def _separable(input_shape: tuple[int, ...], stem: int, budget: float) -> Iterator[Trunk]:
    for channels in range(STEP, WIDEST + 1, STEP):
        width = channels / CHANNELS
        for depth in DEPTHS:
            plan = plan_trunk(input_shape, width, depth, stem)
            shallow = plan_trunk(input_shape, width, 0, stem).multiply_adds
            share = shallow / plan.multiply_adds
            merit = plan.multiply_adds * 4 * share * (1 - share)
            options = {"trunk": "separable", "width": width, "depth": depth, "stem": stem}
            yield Trunk(options, plan.multiply_adds, plan.features, merit)
            if plan.multiply_adds > budget:
                break
        if shallow > budget:
            return
