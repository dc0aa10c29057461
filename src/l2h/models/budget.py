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
#: Channels of the stem: from 16 on multiples of 8, which onnxruntime runs faster than more channels that are none.
STEMS = (4, 8, 12, *range(16, 1025, 8))
#: Blocks at the sizes between stem and lowest, blocks at the lowest, and the fewest channels of the stem with which so
#: many blocks are worth more than a wider trunk. Chosen on validation samples of CIFAR-10 (l2h frontier).
LEVELS = ((2, 2, 32), (1, 1, 24), (0, 1, 12))
MORE_DEPTH = 2  # blocks that may be added at the lowest size with what is left


@dataclass(frozen=True)
class Trunk:
    """A trunk that a rejector may have."""

    options: dict[str, Any]  # by which :func:`l2h.models.build_rejector` builds it
    multiply_adds: int
    features: int
    worthwhile: bool = True  # whether another row of trunks is not to be preferred to one of this size


def within_budget(
    budget: float,
    kind: str,
    input_shape: tuple[int, ...],
    view_size: int,
    classes: int,
    heads: int = 2,
    need_student: bool = False,
) -> dict[str, Any]:
    """Return the options of the largest rejector whose multiply-adds for one input are at most ``budget``.

    Where no trunk fits, an attached rejector has none and reads the client's view alone; a budget of 0 gives a linear
    map of that view. Such a rejector has no student: ``need_student`` refuses it. ``classes`` is K for a rejector with
    a student, else 0. Raises a :class:`ModelError` that says how much the smallest rejector needs.
    """

    def cost(trunk: Trunk, hidden: int) -> int:
        return trunk.multiply_adds + _head(kind, trunk.features, view_size, classes, hidden, heads)

    def with_head(trunk: Trunk) -> dict[str, Any] | None:
        """Return the options with the largest hidden layer in its share; None where not even the smallest fits."""
        if kind == "separate":
            return trunk.options if cost(trunk, 0) <= budget else None
        fitting = [hidden for hidden in HIDDEN if cost(trunk, hidden) <= budget]
        small = [hidden for hidden in fitting if cost(trunk, hidden) - trunk.multiply_adds <= HEAD_SHARE * budget]
        return trunk.options | {"hidden": (small or fitting[-1:])[0]} if fitting else None

    smallest = 0
    for row in _trunks(input_shape):
        found = None
        for trunk in row:
            options = with_head(trunk)
            smallest = min(smallest or cost(trunk, HIDDEN[-1]), cost(trunk, HIDDEN[-1]))
            if options is None:
                break
            found = options if trunk.worthwhile else found
        if found is not None:
            return found
    if kind == "attached" and not need_student:
        plain = {hidden: _head(kind, 0, view_size, 0, hidden, heads) for hidden in (*HIDDEN, 0)}
        smallest = plain[0]
        for hidden, work in plain.items():
            if work <= budget or (hidden == 0 and not budget):
                return {"width": 0.0, "hidden": hidden}
    smallest_one = "smallest rejector with a student" if need_student else "smallest rejector"
    raise ModelError(
        f"a budget of {budget:,.0f} multiply-adds cannot be met: the {smallest_one} for inputs of shape "
        f"{input_shape} needs {smallest:,}"
    )


def _head(kind: str, features: int, view_size: int, classes: int, hidden: int, heads: int) -> int:
    """Return the multiply-adds of a rejector beside its trunk's, as :mod:`l2h.models.rejectors` builds it."""
    if kind == "separate":
        return heads * features
    said = view_size + (STUDENT_FEATURES + classes if classes else 0)
    return classes * features + (said + features + heads) * hidden + heads * said


def _trunks(input_shape: tuple[int, ...]) -> Iterator[Iterator[Trunk]]:
    """Give rows of trunks for these inputs: rows in the order of preference, each from its smallest to its largest."""
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
        yield _perceptrons(input_shape)
        return
    side = min(input_shape[1:])
    first = 1 if side < 16 else 2 if side < 64 else 4
    stems = [stem for stem in (first * 2**power for power in range(10)) if 4 * stem <= side]
    for stem in stems:
        for middle, depth, fewest in LEVELS:
            yield _separable(input_shape, stem, middle, depth, fewest)
    for stem in stems:
        yield _separable(input_shape, stem, 0, 1, 0)


def _separable(input_shape: tuple[int, ...], stem: int, middle: int, depth: int, fewest: int) -> Iterator[Trunk]:
    """Give trunks of growing width, and between two widths of growing depth."""
    plans = {}
    for channels in STEMS:
        width = channels / CHANNELS
        for more in range(MORE_DEPTH + 1):
            plan = plan_trunk(input_shape, width, depth + more, stem, middle)
            options = {"trunk": "separable", "width": width, "depth": depth + more, "stem": stem, "middle": middle}
            plans[channels, more] = Trunk(options, plan.multiply_adds, plan.features, channels >= fewest)
    yield from sorted(plans.values(), key=lambda trunk: trunk.multiply_adds)


def _perceptrons(input_shape: tuple[int, ...]) -> Iterator[Trunk]:
    """Give trunks for tables, and LeNet-5 for images that are too small for anything else, of growing width."""
    for size in sorted({round(4 * 1.1**step) for step in range(60)}):
        width = size / PERCEPTRON
        if len(input_shape) == 3 and min(input_shape[1:]) >= 4:
            net = LeNet5(input_shape, 1, width).to("meta")
            features = net.head.in_features
            cost = multiply_adds(net, torch.zeros(1, *input_shape, device="meta")) - features
        else:
            cost, features = size * (torch.Size(input_shape).numel() + size), size
        yield Trunk({"width": width}, cost, features)
