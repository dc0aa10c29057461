"""The efficient trunk: its cost, its shapes, its folding, and the search for the largest rejector within a budget."""

from __future__ import annotations

import pytest
import torch

from l2h.errors import ModelError
from l2h.models import build_rejector, client_view, client_view_size, fold_batch_norm, multiply_adds, within_budget
from l2h.models.separable import plan_trunk

CLASSES = 10
VIEW = client_view_size(CLASSES)
SHAPES = {
    "8 pixels": (1, 8, 8),
    "28 pixels": (1, 28, 28),
    "32 pixels": (3, 32, 32),
    "oblong": (3, 20, 45),
    "224 pixels": (3, 224, 224),
}


def count(kind: str, shape: tuple[int, ...], options: dict[str, object]) -> int:
    net = build_rejector(kind, shape, VIEW, CLASSES if kind == "attached" else 0, **options)
    x, view = torch.zeros(1, *shape), torch.zeros(1, VIEW)
    return multiply_adds(net, *((x, view) if kind == "attached" else (x,)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("stem", [1, 2, 4])
def test_a_plan_costs_what_torch_counts_and_gives_its_features(shape: tuple[int, ...], stem: int) -> None:
    plan = plan_trunk(shape, width=0.25, depth=2, stem=stem)
    net = plan.build()
    assert plan.multiply_adds == multiply_adds(net, torch.zeros(1, *shape))
    assert net(torch.zeros(2, *shape)).shape == (2, plan.features)


def test_a_folded_trunk_has_no_batch_norm_and_says_the_same() -> None:
    shape = (3, 32, 32)
    net = build_rejector("attached", shape, VIEW, CLASSES, trunk="separable", width=0.5, depth=2, stem=2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, *shape, generator=generator)
    view = client_view(torch.log_softmax(torch.randn(64, CLASSES, generator=generator), dim=-1))
    for _ in range(3):  # statistics other than those it starts with
        net(3 * x + 1, view)
    folded = fold_batch_norm(net)
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in net.modules())
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in folded.modules())
    assert torch.allclose(folded(x, view), net.eval()(x, view), atol=1e-5)


@pytest.mark.parametrize("kind", ["attached", "separate"])
@pytest.mark.parametrize("shape", [*SHAPES.values(), (1, 5, 5), (1, 2, 2), (20,)], ids=str)
def test_the_rejector_found_is_within_its_budget_and_uses_it(kind: str, shape: tuple[int, ...]) -> None:
    classes = CLASSES if kind == "attached" else 0
    costs = []
    for budget in (60_000, 200_000, 1_500_000):
        costs.append(count(kind, shape, within_budget(budget, kind, shape, VIEW, classes)))
        assert costs[-1] <= budget
        if len(shape) == 3 and min(shape[1:]) >= 8:
            assert costs[-1] >= 0.7 * budget
    assert costs == sorted(costs)


@pytest.mark.parametrize("kind", ["attached", "separate"])
def test_a_budget_that_cannot_be_met_says_the_smallest_which_can(kind: str) -> None:
    shape, classes = (3, 32, 32), CLASSES if kind == "attached" else 0
    with pytest.raises(ModelError, match=r"cannot be met: the smallest rejector .* needs") as caught:
        within_budget(30, kind, shape, VIEW, classes)
    smallest = int(str(caught.value).split()[-1].replace(",", ""))
    assert count(kind, shape, within_budget(smallest, kind, shape, VIEW, classes)) == smallest
    with pytest.raises(ModelError, match="cannot be met"):
        within_budget(smallest - 1, kind, shape, VIEW, classes)


def test_a_budget_of_nothing_is_a_linear_map_of_what_the_client_said() -> None:
    options = within_budget(0, "attached", (3, 32, 32), VIEW, CLASSES)
    net = build_rejector("attached", (3, 32, 32), VIEW, CLASSES, **options)
    assert {name for name, _ in net.named_parameters()} == {"skip.weight", "skip.bias"}


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 7, 9), {}, "sides from 8"),
        ((12,), {"trunk": "resnet"}, "unknown trunk 'resnet'"),
        ((1, 8, 8), {"stem": 3}, "stem=3 must be"),
        ((1, 8, 8), {"stem": 8}, "stem=8 must be"),
        ((1, 8, 8), {"depth": -1}, "depth=-1 and"),
        ((1, 8, 8), {"width": -1.0, "trunk": "separable"}, "above 0"),
    ],
)
def test_what_cannot_be_built_is_named(shape: tuple[int, ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_rejector("separate", shape, VIEW, **{"trunk": "separable", **options})
