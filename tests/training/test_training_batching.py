"""A batch of rejectors is a way to compute, not a way to train: each gets what it would get alone."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from training_maker import (
    CPU,
    batch_of,
    client_log_probability,
    context,
    describe,
    named_rejector,
    pool,
    samples,
    small_server,
)

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import ModelError
from l2h.models.rejectors import client_view
from l2h.settings import StageSettings
from l2h.training import BatchLoss, RejectorBatch, RejectorStage
from l2h.training.alternating import AlternatingStage
from l2h.training.loop import run_stage

PRICES = (Costs(c_e=0.05, c_1=0.5), Costs(c_e=0.3, c_1=1.25))
POOL = pool(160, seed=1)
HELD_OUT = pool(120, seed=2)


def stage_specs() -> list[RejectorSpec]:
    priced = [RejectorSpec("priced", None, seed) for seed in (0, 1)]
    return priced + [
        RejectorSpec(loss, costs, seed)
        for loss, costs, seed in product(("shifted", "swapped", "paper"), PRICES, (0, 1))
    ]


def train_on_pool(specs: list[RejectorSpec], kind: str, settings: StageSettings) -> RejectorStage:
    rejectors = batch_of([named_rejector(kind, spec.seed, POOL.view) for spec in specs])
    stage = RejectorStage("rejector", rejectors, BatchLoss(specs, CPU).on_pool, POOL, settings, context(), HELD_OUT)
    run_stage(stage, stage.context)
    stage.keep_best()
    return stage


def assert_same_rejector(batch: RejectorBatch, i: int, alone: RejectorBatch, atol: float, what: str) -> None:
    for name, tensor in alone.state_dict().items():
        expected, found = tensor[0].detach(), batch.state_dict()[name][i].detach()
        # Relative where weights are large: under the paper's loss they run away, as they would alone.
        difference = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        assert difference <= atol, f"{what}: {name} differs by {difference}"


@pytest.mark.parametrize("kind", ["attached", "separate"])
def test_a_batch_of_rejectors_trains_each_as_alone(kind: str) -> None:
    """Ten epochs of SGD with early stopping; the batch goes on for the others after one has run out of patience.

    1e-5: batched and plain matrix products add up in another order, which SGD passes on without amplifying it.
    """
    settings = StageSettings(epochs=10, batch=32, optimizer="sgd", lr=0.15, schedule="constant", patience=1)
    specs = stage_specs()
    together = train_on_pool(specs, kind, settings)
    stopped_at = []
    for i, spec in enumerate(specs):
        alone = train_on_pool([spec], kind, settings)
        stopped_at.append(alone.epoch)
        assert int(together.best_epoch[i]) == int(alone.best_epoch[0]), describe(spec)
        assert float(together.best_loss[i]) == pytest.approx(float(alone.best_loss[0]), rel=1e-5, abs=1e-5)
        assert_same_rejector(together.rejectors, i, alone.rejectors, 1e-5, describe(spec))
    # The case is one of early stopping at different epochs, or the test would say little.
    assert min(stopped_at) < together.epoch
    assert together.epoch == max(stopped_at)
    assert len(set(together.best_epoch.tolist())) > 1


@pytest.mark.parametrize("kind", ["attached", "separate"])
def test_a_batch_under_adamw_judges_as_each_alone(kind: str) -> None:
    """AdamW divides by the size of the gradient, so a rounding in a gradient near 0 moves a weight: compare what the
    rejectors say. 1e-3 on scores of order 1 after 3 epochs."""
    settings = StageSettings(epochs=3, batch=32, optimizer="adamw", lr=3e-3, weight_decay=1e-2, patience=None)
    specs = stage_specs()
    together = train_on_pool(specs, kind, settings)
    scores = together.rejectors.scores(HELD_OUT.x, HELD_OUT.view, together.context)
    for i, spec in enumerate(specs):
        alone = train_on_pool([spec], kind, settings)
        expected = alone.rejectors.scores(HELD_OUT.x, HELD_OUT.view, alone.context)[0]
        assert torch.allclose(scores[i], expected, atol=1e-3), describe(spec)


def train_in_turn(specs: list[RejectorSpec], kind: str) -> AlternatingStage:
    x, y = samples(90)
    log_p = client_log_probability(x)
    view = client_view(log_p)
    plain = {"epochs": 2, "batch": 16, "optimizer": "sgd", "schedule": "constant", "patience": None}
    stage = AlternatingStage(
        "server and rejector",
        small_server(),
        batch_of([named_rejector(kind, spec.seed, view) for spec in specs]),
        specs,
        x,
        y,
        view,
        log_p.argmax(1) == y,
        StageSettings(lr=0.05, **plain),
        StageSettings(lr=0.002, reduction="sum", **plain),
        context(recipe="paper", loss="paper"),
    )
    run_stage(stage, stage.context)
    return stage


@pytest.mark.parametrize("kind", ["attached", "separate"])
def test_a_batch_in_turn_with_the_server_trains_each_as_alone(kind: str) -> None:
    """Every loss, price, interval and seed; the tolerance is that of SGD above. The server is the same to the bit."""
    specs = [
        RejectorSpec(loss, costs, seed, sync)
        for (loss, costs, seed), sync in zip(
            product(("shifted", "swapped", "paper"), PRICES, (0, 1)), [1, 3, "epoch", 1000] * 3, strict=True
        )
    ]
    together = train_in_turn(specs, kind)
    for i, spec in enumerate(specs):
        alone = train_in_turn([spec], kind)
        assert_same_rejector(together.rejectors, i, alone.rejectors, 1e-5, describe(spec))
        for name, tensor in alone.server.state_dict().items():
            assert torch.equal(tensor, together.server.state_dict()[name]), name


def test_each_keeps_its_own_best_weights_as_an_independent_loop_finds_them() -> None:
    """Early stopping by hand: SGD on one plain module, the held-out loss after each epoch, the best weights kept."""
    from l2h.training.loop import order

    settings = StageSettings(epochs=10, batch=32, optimizer="sgd", lr=0.3, schedule="constant", patience=2)
    spec = RejectorSpec("shifted", PRICES[1], seed=1)
    stage = train_on_pool([spec, RejectorSpec("swapped", PRICES[0])], "separate", settings)
    net = named_rejector("separate", 1, POOL.view)

    def loss(outcomes: object) -> Tensor:
        c_e, c_1 = PRICES[1].c_e, PRICES[1].c_1
        highest = max(1.0, c_e + c_1)
        log_p = nn.functional.log_softmax(net(outcomes.x), dim=1)
        remote = highest - c_e - c_1 * (~outcomes.server_correct).float()
        local = highest - (~outcomes.client_correct).float()
        return -(local * log_p[:, 0] + remote * log_p[:, 1]).mean()

    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    best_loss, best_epoch, best = float("inf"), 0, {}
    for epoch in range(settings.epochs):
        for rows in order(len(POOL), torch.device("cpu"), 3, "rejector", epoch).split(32):
            optimizer.zero_grad()
            loss(POOL.at(rows)).backward()
            optimizer.step()
        with torch.no_grad():
            now = float(loss(HELD_OUT))
        if now < best_loss:
            best_loss, best_epoch = now, epoch + 1
            best = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        if epoch + 1 - best_epoch >= 2:
            break
    assert int(stage.best_epoch[0]) == best_epoch < epoch + 1
    for name, tensor in stage.rejectors.module(0).state_dict().items():
        assert torch.allclose(tensor, best[name], atol=1e-5), name


def test_a_rejector_that_diverged_at_once_is_an_error_and_not_an_untrained_rejector() -> None:
    settings = StageSettings(epochs=3, batch=32, optimizer="sgd", lr=1e18, schedule="constant", patience=2)
    with pytest.raises(ModelError, match=r"rejector 0, 1: the held-out loss was never finite: lower lr .*1e\+18"):
        train_on_pool([RejectorSpec("shifted", costs) for costs in PRICES], "separate", settings)
