"""SGD whose gradients accumulate in the momentum buffers, against torch's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_maker import context, small_server

from l2h.models import build_scaled
from l2h.settings import PAPER_SERVER
from l2h.training.accumulating import AccumulatingSGD, server_optimizer
from l2h.training.checkpoint import optimizer_tensors, restore_optimizer

SHAPE, CLASSES, STEPS = (3, 32, 32), 10, 4


def alexnet() -> nn.Module:
    torch.manual_seed(0)
    return build_scaled("alexnet", SHAPE, CLASSES, hidden=32)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> None:
    """A few steps on batches of which the last is smaller; the draws of dropout depend on the step alone."""
    for step in steps:
        torch.manual_seed(step)
        x, y = torch.randn(6 if step < STEPS - 1 else 3, *SHAPE), torch.arange(6) % CLASSES
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(x), y[: len(x)]).backward()
        net.eval()
        optimizer.step()


def torch_sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("large", [1, 100_000, 10**9], ids=["every layer", "the largest", "none"])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["usual", "channels last"])
def test_it_is_torch_sgd_up_to_rounding(order: torch.memory_format, large: int) -> None:
    """Whatever layers count as large: apart by less than a thousandth of the way that the weights have gone."""
    ours, theirs = (alexnet().to(memory_format=order) for _ in range(2))
    optimizer, other = AccumulatingSGD(ours, 0.05, 0.9, large), torch_sgd(theirs)
    assert len(optimizer.layers) == {1: 3, 100_000: 1, 10**9: 0}[large]
    begun = [p.detach().clone() for p in ours.parameters()]
    train(ours, optimizer)
    train(theirs, other)
    for p, q, first in zip(ours.parameters(), theirs.parameters(), begun, strict=True):
        assert (q - first).abs().max() > 0
        assert (p - q).abs().max() < 1e-3 * (q - first).abs().max()
    found, expected = optimizer_tensors(optimizer), optimizer_tensors(other)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-4) for name in found)
    assert all("forward" not in vars(module) for module in ours.modules()), "the net is left as it was"


def test_it_goes_on_from_a_checkpoint_of_torch_sgd() -> None:
    ours, theirs = alexnet(), alexnet()
    before = torch_sgd(theirs)
    train(theirs, before, range(2))
    ours.load_state_dict(theirs.state_dict())
    optimizer = AccumulatingSGD(ours, 0.05, 0.9, 1)
    restore_optimizer(optimizer, optimizer_tensors(before))
    train(ours, optimizer, range(2, STEPS))
    train(theirs, before, range(2, STEPS))
    assert all(
        torch.allclose(p, q, rtol=0, atol=1e-5) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def test_only_what_it_computes_is_left_to_it() -> None:
    """Layers of a user's module may be called twice in a pass, and weight decay needs a pass of its own."""
    plain = context(0, recipe="paper", loss="paper")
    assert isinstance(server_optimizer(PAPER_SERVER, alexnet(), plain), AccumulatingSGD)
    assert not isinstance(server_optimizer(PAPER_SERVER, small_server(), plain), AccumulatingSGD)
    for change in ({"weight_decay": 1e-4}, {"momentum": 0.0}, {"optimizer": "adamw"}):
        assert not isinstance(server_optimizer(replace(PAPER_SERVER, **change), alexnet(), plain), AccumulatingSGD)
    half = context(0, recipe="paper", loss="paper", precision="bf16")
    assert not isinstance(server_optimizer(PAPER_SERVER, alexnet(), half), AccumulatingSGD)
