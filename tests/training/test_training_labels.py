"""Losses on samples whose truth is uncertain: the mean over the classes, weighted by how likely each is."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from l2h import methods
from l2h.costs import Costs
from l2h.methods import Learned
from l2h.models import client_view
from l2h.training import SamplePool
from l2h.training.rejector_stage import UncertainPool, over_labels

CPU, N, K = torch.device("cpu"), 12, 4
LEARNED = [method for method in methods.get(methods.known()) if isinstance(method, Learned) and method.classes is None]
COSTS = (Costs(c_e=0.1), Costs(c_e=0.2, c_1=1.25))


def make(labels: torch.Tensor, y: torch.Tensor) -> UncertainPool:
    generator = torch.Generator().manual_seed(3)
    log_p, server = (torch.randn(N, K, generator=generator) * 2 for _ in range(2))
    log_p, server = torch.log_softmax(log_p, dim=-1), torch.softmax(server, dim=-1)
    client, right = log_p.argmax(-1) == y, server.argmax(-1) == y
    x = torch.zeros(N, 1)
    return UncertainPool(x, client_view(log_p), y, client, right, server, client.float(), right.float(), server, labels)


def plain(pool: UncertainPool) -> SamplePool:
    return SamplePool(*(getattr(pool, name) for name in SamplePool.__dataclass_fields__))


@pytest.mark.parametrize("method", LEARNED, ids=lambda method: method.name)
def test_it_is_the_mean_of_the_losses_with_each_class_as_the_truth(method: Learned) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.softmax(torch.randn(N, K, generator=generator), dim=-1)
    specs = method.specs(COSTS)
    loss = method.objective(specs, CPU, 0.7)
    scores = torch.randn(len(specs), N, 2, generator=generator)
    y = torch.randint(0, K, (N,), generator=generator)
    each = torch.stack([loss(scores, plain(make(labels, torch.full((N,), k)))) for k in range(K)], dim=-1)
    found = over_labels(loss)(scores, make(labels, y))
    assert torch.allclose(found, (each * labels).sum(-1), atol=1e-5)
    # A truth that is certain is the truth.
    sure = make(F.one_hot(y, K).float(), y)
    assert torch.allclose(over_labels(loss)(scores, sure), loss(scores, plain(sure)), atol=1e-5)
    assert torch.equal(over_labels(loss)(scores, plain(sure)), loss(scores, plain(sure)))


def test_of_the_priced_loss_it_is_the_loss_towards_probabilities() -> None:
    """So the crossed priced loss is the default method's own."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.softmax(torch.randn(N, K, generator=generator), dim=-1)
    (method,) = (method for method in LEARNED if method.name == methods.DEFAULT)
    loss = method.objective(method.specs(None), CPU, 0.7)
    pool = make(labels, torch.zeros(N, dtype=torch.long))
    scores = torch.randn(1, N, 2, generator=generator)
    targets = torch.stack([labels.gather(1, answer[:, None])[:, 0] for answer in answers(pool)], dim=-1)
    expected = F.binary_cross_entropy_with_logits(scores[0], targets, reduction="none").sum(-1)
    assert torch.allclose(over_labels(loss)(scores, pool)[0], expected, atol=1e-5)


def answers(pool: UncertainPool) -> tuple[torch.Tensor, torch.Tensor]:
    start = min(10, K) + 3
    return pool.view[:, start : start + K].argmax(-1), pool.server_probability.argmax(-1)
