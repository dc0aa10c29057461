"""The server stage against a plain loop, and what it does where it cannot go on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from training_maker import CPU, context, samples, small_server

from l2h.errors import ModelError, ResumeError
from l2h.settings import StageSettings, usual_batch
from l2h.training.checkpoint import Checkpoints
from l2h.training.loop import order, run_stage, seeded
from l2h.training.server import ServerStage

N, BATCH = 80, 16


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_server_stage_is_plain_sgd_on_the_cross_entropy(reduction: str) -> None:
    """Two epochs with dropout; 1e-6 for roundings of float32."""
    settings = StageSettings(
        epochs=2, batch=BATCH, optimizer="sgd", lr=0.01, schedule="constant", patience=None, reduction=reduction
    )
    x, y = samples(N)
    stage = ServerStage("server", small_server(), x, y, settings, context(seed=3))
    run_stage(stage, stage.context)
    net = small_server()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for epoch in range(2):
        with seeded(CPU, 3, "server", epoch):
            total = 0.0
            for rows in order(N, CPU, 3, "server", epoch).split(BATCH):
                each = nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="none")
                optimizer.zero_grad()
                (each.mean() if reduction == "mean" else each.sum()).backward()
                optimizer.step()
                total += float(each.detach().sum())
            losses.append(total / N)
    for name, tensor in stage.model.state_dict().items():
        assert torch.allclose(tensor, net.state_dict()[name], rtol=0, atol=1e-6), name
    assert [row["train_loss"] for row in stage.context.history] == pytest.approx(losses, abs=1e-5)


def test_the_best_held_out_epoch_is_kept() -> None:
    """Labels without sense: the held-out loss rises once the net begins to learn them by heart."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 5), torch.randint(0, 3, (60,))
    held = torch.randn(60, 5), torch.randint(0, 3, (60,))
    settings = StageSettings(epochs=30, batch=16, lr=3e-2, schedule="constant", patience=3)
    net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))
    stage = ServerStage("server", net, x, y, settings, context(), held)
    run_stage(stage, stage.context)
    stage.keep_best()
    rows = stage.context.history
    held_out = [row["held_out_loss"] for row in rows]
    best = held_out.index(min(held_out))
    assert len(rows) == best + 1 + 3 < 30
    with torch.no_grad():
        now = float(nn.functional.cross_entropy(net.eval()(held[0]), held[1]))
    assert now == pytest.approx(min(held_out), abs=1e-6)


def test_a_loss_that_is_not_finite_names_the_learning_rate() -> None:
    x, y = samples(N)
    settings = StageSettings(epochs=5, batch=BATCH, optimizer="sgd", lr=1e20, schedule="constant", patience=None)
    stage = ServerStage("server", small_server(), x, y, settings, context())
    with pytest.raises(ModelError, match=r"lr .*1e\+20"):
        run_stage(stage, stage.context)


def test_a_last_batch_of_one_sample_under_batch_norm_is_told() -> None:
    x, y = samples(N)
    settings = StageSettings(epochs=1, batch=N - 1, lr=1e-3, patience=None)
    net = nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(), nn.LazyLinear(int(y.max()) + 1))
    net(x)
    stage = ServerStage("server", net, x, y, settings, context())
    with pytest.raises(ModelError, match=r"^server: batch norm needs .* of 80 in batches of 79 a batch has one: set"):
        run_stage(stage, stage.context)


@given(st.integers(2, 500_000))
@example(257)
@example(4097)
def test_no_batch_of_the_default_has_one_sample_and_few_samples_have_steps_enough(samples: int) -> None:
    batch = usual_batch(samples)
    assert 8 <= batch <= 258
    assert samples % batch != 1
    assert samples < 96 or samples / batch > 10
    assert samples < 3072 or batch >= 256


def test_a_stage_does_not_go_on_with_batches_of_another_size(tmp_path: Path) -> None:
    x, y = samples(N)
    shared = context()
    shared.checkpoints = Checkpoints(tmp_path, resume=True)
    for batch in (BATCH, BATCH // 2):
        stage = ServerStage("server", small_server(), x, y, StageSettings(epochs=2, batch=batch, lr=1e-3), shared)
        refused = pytest.raises(ResumeError, match=r"5 steps per epoch, and here .* 10")
        with nullcontext() if batch == BATCH else refused:
            run_stage(stage, shared)


def test_a_stage_without_a_batch_takes_what_its_samples_suggest() -> None:
    x, y = samples(N)
    settings = StageSettings(epochs=1, batch=None, lr=1e-3, patience=None)
    stage = ServerStage("server", small_server(), x, y, settings, context())
    run_stage(stage, stage.context)
    assert stage.context.history[0]["steps"] == N / usual_batch(N) == 10
