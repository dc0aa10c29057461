"""Algorithms 1 and 2 against a plain loop written from the paper: no vmap, no optimizer, no shared code but the
documented source of the order of samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_maker import (
    CPU,
    batch_of,
    client_log_probability,
    context,
    samples,
    small_rejector,
    small_server,
)

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import SettingsError
from l2h.models.rejectors import client_view
from l2h.settings import StageSettings
from l2h.training.alternating import AlternatingStage
from l2h.training.loop import order, run_stage, seeded

N, BATCH, EPOCHS, SEED = 100, 16, 2, 3
STEPS = 7  # of an epoch: six full batches and one of four samples
NAME = "server and rejector"
SERVER = StageSettings(
    epochs=EPOCHS, batch=BATCH, optimizer="sgd", lr=0.05, momentum=0.9, schedule="constant", patience=None
)
REJECTOR = StageSettings(
    epochs=EPOCHS,
    batch=BATCH,
    optimizer="sgd",
    lr=0.01,
    momentum=0.9,
    schedule="constant",
    patience=None,
    reduction="sum",
)
# The second is beyond c_e + c_1 = 1, where a weight of L2 is negative.
PRICES = (Costs(c_e=0.1, c_1=0.5), Costs(c_e=0.25, c_1=1.25))


class HandSGD:
    """v = mu v + g; w = w - lr v."""

    def __init__(self, net: nn.Module, lr: float, momentum: float) -> None:
        self.weights, self.lr, self.momentum = list(net.parameters()), lr, momentum
        self.velocity = [torch.zeros_like(w) for w in self.weights]

    def step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            for w, v, g in zip(self.weights, self.velocity, gradients, strict=True):
                v.mul_(self.momentum).add_(g)
                w.sub_(self.lr * v)


def equation_7(scores: Tensor, m_right: Tensor, e_right: Tensor, c_e: float, c_1: float) -> Tensor:
    """-(1 - c_e - c_1 + c_1 1[e=y]) ln p_remote - 1[m=y] ln p_local, summed over the batch."""
    log_p = scores - torch.logsumexp(scores, dim=1, keepdim=True)
    remote = (1 - c_e - c_1 + c_1 * e_right.float()) * log_p[:, 1]
    return -(remote + m_right.float() * log_p[:, 0]).sum()


def every(interval: int) -> Callable[[int], bool]:
    """t = 1, 1 + S, 1 + 2S, ..."""
    return lambda t: (t - 1) % interval == 0


def paper_loop(
    costs: Costs, arrives: Callable[[int], bool], start: int = 0, joint: bool = False
) -> tuple[nn.Module, nn.Module]:
    """Algorithm 2, a copy arriving at the steps t = 1, 2, ... that ``arrives`` says; Algorithm 1 where all do.

    The rejector waits for ``start`` epochs. ``joint``: one step by the sum over the batch of both losses.
    """
    x, y = samples(N)
    m_right = client_log_probability(x).argmax(1) == y
    server, rejector = small_server(), small_rejector()
    server_steps, rejector_steps = HandSGD(server, 0.05, 0.9), HandSGD(rejector, 0.01, 0.9)
    arrived = None
    t = 0
    for epoch in range(EPOCHS):
        with seeded(CPU, SEED, NAME, epoch):
            for rows in order(N, CPU, SEED, NAME, epoch).split(BATCH):
                t += 1
                server.eval()
                before = copy.deepcopy(server)
                server.train()
                log_p = torch.log_softmax(server(x[rows]), dim=1)
                l_1 = -log_p[torch.arange(len(rows)), y[rows]]
                server_steps.step(l_1.sum() * REJECTOR.lr / SERVER.lr if joint else l_1.mean())
                server.eval()
                if arrives(t):
                    arrived = copy.deepcopy(server)
                if epoch < start:
                    continue
                with torch.no_grad():
                    e_right = (before if joint else arrived)(x[rows]).argmax(1) == y[rows]
                loss = equation_7(rejector(x[rows]), m_right[rows], e_right, costs.c_e, costs.c_1)
                rejector_steps.step(loss)
    assert t == EPOCHS * STEPS
    return server, rejector


def train(specs: list[RejectorSpec], rejectors: list[nn.Module] | None = None, joint: bool = False) -> AlternatingStage:
    x, y = samples(N)
    log_p = client_log_probability(x)
    stage = AlternatingStage(
        NAME,
        small_server(),
        batch_of(rejectors or [small_rejector(spec.seed) for spec in specs]),
        specs,
        x,
        y,
        client_view(log_p),
        log_p.argmax(1) == y,
        replace(SERVER, lr=REJECTOR.lr, reduction="sum") if joint else SERVER,
        REJECTOR,
        context(SEED, recipe="paper", loss="paper", joint=joint),
    )
    run_stage(stage, stage.context)
    return stage


def assert_close(found: nn.Module, expected: nn.Module) -> None:
    """To 1e-6: a few roundings of float32 on weights of order 1, over 14 steps."""
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6), f"{name}: {float((a - b).abs().max())}"


@pytest.mark.parametrize("costs", PRICES, ids=str)
def test_algorithm_1_is_the_paper_loop(costs: Costs) -> None:
    server, rejector = paper_loop(costs, every(1))
    stage = train([RejectorSpec("paper", costs)])
    assert_close(stage.server, server)
    assert_close(stage.rejectors.module(0), rejector)


@pytest.mark.parametrize("costs", PRICES, ids=str)
@pytest.mark.parametrize(("sync", "interval"), [(1, 1), (3, 3), ("epoch", STEPS)])
def test_algorithm_2_uses_the_copy_that_arrived_last(costs: Costs, sync: int | str, interval: int) -> None:
    server, rejector = paper_loop(costs, every(interval))
    stage = train([RejectorSpec("paper", costs, sync=sync)])
    assert_close(stage.server, server)
    assert_close(stage.rejectors.module(0), rejector)


def test_the_interval_matters_in_this_setup() -> None:
    """Otherwise the tests above could not tell Algorithm 2 from Algorithm 1."""
    ends = [paper_loop(PRICES[1], every(interval))[1][0].weight for interval in (1, 3, STEPS)]
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in ((ends[0], ends[1]), (ends[1], ends[2])))


def test_sync_at_every_step_is_algorithm_1_bit_for_bit() -> None:
    """S = 1 is what a rejector gets that asks for nothing, also beside rejectors for which copies are kept."""
    costs = PRICES[1]
    plain, every_step = train([RejectorSpec("paper", costs)]), train([RejectorSpec("paper", costs, sync=1)])
    for name, tensor in plain.rejectors.state_dict().items():
        assert torch.equal(tensor, every_step.rejectors.state_dict()[name]), name
    pair = train([RejectorSpec("paper", costs, sync=1), RejectorSpec("paper", costs, sync=1)])
    beside = train([RejectorSpec("paper", costs, sync=1), RejectorSpec("paper", costs, sync=EPOCHS * STEPS)])
    for name, tensor in beside.rejectors.state_dict().items():
        assert torch.equal(tensor[0], pair.rejectors.state_dict()[name][0]), name
        assert torch.equal(pair.rejectors.state_dict()[name][0], pair.rejectors.state_dict()[name][1]), name


@pytest.mark.parametrize("spans", [[(0, 13)], [(2, 5), (7, 8), (8, 10)], [(0, 1)]], ids=str)
def test_a_link_of_any_shape_gives_the_copy_that_arrived_last(spans: list[tuple[int, int]], tmp_path: Path) -> None:
    """A trace of spans in which the link is up, [up, down) in steps from 0; the first step always is."""
    trace = tmp_path / "trace.csv"
    trace.write_text("up,down\n" + "".join(f"{up},{down}\n" for up, down in spans))
    up = {0} | {step for start, end in spans for step in range(start, end)}
    server, rejector = paper_loop(PRICES[1], lambda t: t - 1 in up)
    stage = train([RejectorSpec("paper", PRICES[1], sync=f"trace:{trace}")])
    assert_close(stage.server, server)
    assert_close(stage.rejectors.module(0), rejector)


def test_server_depends_on_no_cost_interval_or_rejector() -> None:
    """L1 knows nothing of r, m or the prices, so neither may the server's weights: bit for bit."""

    class Dropping(nn.Module):
        """A rejector that draws numbers of its own while it trains."""

        def __init__(self) -> None:
            super().__init__()
            self.net = small_rejector(9)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(nn.functional.dropout(x, 0.5, self.training))

    reference = train([RejectorSpec("paper", PRICES[0])]).server.state_dict()
    others = [
        train([RejectorSpec("paper", PRICES[1])]),
        train([RejectorSpec("shifted", PRICES[0], sync=3)]),
        train([RejectorSpec("swapped", PRICES[1], sync="epoch", seed=4), RejectorSpec("paper", PRICES[0], sync=5)]),
        train([RejectorSpec("paper", PRICES[0], dropout=True), RejectorSpec("paper", PRICES[0], dropout=True, sync=3)]),
        train([RejectorSpec("released", PRICES[0], start=1)]),
        train([RejectorSpec("shifted", PRICES[0])], [Dropping()]),
        train([RejectorSpec("shifted", PRICES[0])] * 2, [Dropping(), Dropping()]),
    ]
    for number, stage in enumerate(others):
        for name, tensor in stage.server.state_dict().items():
            assert torch.equal(tensor, reference[name]), (number, name)


def test_a_rejector_that_starts_later_is_the_loop_that_waits() -> None:
    """Beside one that does not wait, and for which nothing changes."""
    server, late = paper_loop(PRICES[1], every(1), start=1)
    _, early = paper_loop(PRICES[1], every(1))
    stage = train([RejectorSpec("paper", PRICES[1], start=1), RejectorSpec("paper", PRICES[1])])
    assert_close(stage.server, server)
    assert_close(stage.rejectors.module(0), late)
    assert_close(stage.rejectors.module(1), early)


def test_a_spec_of_before_and_one_with_all_fields_go_through_json() -> None:
    old = {"loss": "paper", "costs": {"c_e": 0.1, "c_1": 0.5}, "seed": 2, "sync": 3}
    assert RejectorSpec.from_dict(old).as_dict() == old
    spec = RejectorSpec("released", PRICES[0], start=2, dropout=True)
    assert RejectorSpec.from_dict(spec.as_dict()) == spec


def test_a_joint_step_judges_the_server_before_it() -> None:
    server, rejector = paper_loop(PRICES[1], every(1), joint=True)
    stage = train([RejectorSpec("paper", PRICES[1])], joint=True)
    assert_close(stage.server, server)
    assert_close(stage.rejectors.module(0), rejector)
    with pytest.raises(SettingsError, match="sync"):
        train([RejectorSpec("paper", PRICES[1], sync=3)], joint=True)


def test_a_server_is_judged_with_dropout_where_that_is_asked_for() -> None:
    """Dropout makes more answers wrong; with other draws at each step, and for a copy as for the server itself."""
    specs = [RejectorSpec("paper", PRICES[0], sync=sync, dropout=on) for on in (False, True) for sync in (1, "epoch")]
    stage = train(specs)
    rows = stage.context.history
    live, kept, live_dropped, kept_dropped = ([row[f"server_right_{k}"] for row in rows] for k in range(4))
    assert [row["server_right_0"] for row in train(specs[:1]).context.history] == live
    assert sum(live_dropped) < sum(live)
    assert sum(kept_dropped) < sum(kept)
    for name, tensor in stage.rejectors.state_dict().items():
        assert not torch.equal(tensor[0], tensor[2]), name
        assert not torch.equal(tensor[1], tensor[3]), name


@pytest.mark.parametrize("start", [EPOCHS, EPOCHS + 3])
def test_a_rejector_that_would_never_start_is_refused(start: int) -> None:
    with pytest.raises(SettingsError, match=f"start={start}"):
        train([RejectorSpec("paper", PRICES[0], start=start)])


def test_priced_heads_have_no_place_in_the_alternating_recipe() -> None:
    with pytest.raises(SettingsError, match="priced"):
        train([RejectorSpec()])


def test_history_holds_the_mean_losses_of_both_sides() -> None:
    """The rows of the history against the losses recomputed where nothing moves: a learning rate of almost 0."""
    x, y = samples(N)
    log_p = client_log_probability(x)
    m_right = log_p.argmax(1) == y
    still = StageSettings(epochs=1, batch=BATCH, optimizer="sgd", lr=1e-12, schedule="constant", patience=None)
    server = nn.Sequential(*(m for m in small_server() if not isinstance(m, nn.Dropout)))
    rejector = small_rejector()
    stage = AlternatingStage(
        NAME, server, batch_of([rejector]), [RejectorSpec("paper", PRICES[0])], x, y, client_view(log_p), m_right,
        still, still, context(SEED, recipe="paper", loss="paper"),
    )  # fmt: skip
    run_stage(stage, stage.context)
    (row,) = stage.context.history
    with torch.no_grad():
        scores = server(x)
        l_1 = float(nn.functional.cross_entropy(scores, y))
        l_2 = float(equation_7(rejector(x), m_right, scores.argmax(1) == y, PRICES[0].c_e, PRICES[0].c_1)) / N
    assert row["train_loss"] == pytest.approx(l_1, abs=1e-5)
    assert row["rejector_loss"] == pytest.approx(l_2, abs=1e-5)
    assert (row["epoch"], row["steps"]) == (1, STEPS)
