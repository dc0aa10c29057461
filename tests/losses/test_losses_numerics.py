"""The surrogate losses as programs: gradients, extreme logits, reductions, refusals."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from l2h.costs import Costs
from l2h.errors import SettingsError
from l2h.losses import KINDS, priced_loss, reduce, rejector_loss, server_loss, weight_table, weighted_log_loss

PRICES = [(0.0, 0.0), (0.1, 0.5), (0.25, 0.75), (0.25, 1.25), (1.0, 2.0)]
EXTREME = [list(pair) for pair in itertools.product((-1e4, 0.0, 1e4), repeat=2)]


def outcomes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator) < 0.5, torch.rand(n, generator=generator) < 0.5


def normal(*shape: int, seed: int) -> Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights_by_hand(client: Tensor, server: Tensor, c_e: float, c_1: float, kind: str) -> Tensor:
    """(n, 2), from the formulas of the losses."""
    l_local = (~client).double()
    l_remote = c_e + c_1 * (~server).double()
    if kind == "released":
        return torch.stack([1 - l_local, 1 - c_e + c_1 * (~server).double()], dim=1)
    if kind == "swapped":
        return torch.stack([l_remote, l_local], dim=1)
    top = 1.0 if kind == "paper" else max(1.0, c_e + c_1)
    return torch.stack([top - l_local, top - l_remote], dim=1)


@pytest.mark.parametrize(("c_e", "c_1"), PRICES)
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_closed_form(kind: str, c_e: float, c_1: float) -> None:
    scores = normal(200, 2, seed=0).requires_grad_(True)
    client, server = outcomes(200, seed=1)
    loss = rejector_loss(scores, client, server, Costs(c_e, c_1), kind=kind, reduction="sum")
    loss.backward()
    w = weights_by_hand(client, server, c_e, c_1, kind)
    with torch.no_grad():
        p = torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)
        value = -(w * torch.log(p)).sum()
        gradient = w.sum(dim=1, keepdim=True) * p - w
    # Sums of 200 doubles of the order of 10.
    torch.testing.assert_close(loss.detach(), value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores.grad, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("c_e", "c_1"), PRICES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(kind: str, c_e: float, c_1: float) -> None:
    scores = normal(12, 2, seed=2).requires_grad_(True)
    client, server = outcomes(12, seed=3)
    costs = Costs(c_e, c_1)

    def loss(at: Tensor) -> Tensor:
        return rejector_loss(at, client, server, costs, kind=kind)

    loss(scores).backward()
    step = 1e-5
    with torch.no_grad():
        for i, k in itertools.product(range(12), range(2)):
            shift = torch.zeros_like(scores)
            shift[i, k] = step
            slope = (loss(scores + shift) - loss(scores - shift)) / (2 * step)
            # Central differences err by step squared (1e-10) and by rounding over step (1e-11).
            assert scores.grad[i, k].item() == pytest.approx(slope.item(), abs=1e-9)
    assert torch.autograd.gradcheck(loss, (scores,))


def test_server_and_priced_gradients_pass_the_check() -> None:
    y = torch.tensor([0, 2, 1, 2])
    assert torch.autograd.gradcheck(lambda s: server_loss(s, y), (normal(4, 3, seed=4).requires_grad_(True),))
    targets = torch.tensor([0.0, 1.0, 0.3, 0.9]), torch.tensor([1.0, 1.0, 0.0, 0.5])
    assert torch.autograd.gradcheck(lambda s: priced_loss(s, *targets), (normal(4, 2, seed=5).requires_grad_(True),))


def test_the_server_loss_is_the_mean_log_loss_of_the_true_class() -> None:
    scores, y = normal(50, 7, seed=6), torch.arange(50) % 7
    by_hand = [math.log(sum(math.exp(s) for s in row)) - row[j] for row, j in zip(scores.tolist(), y, strict=True)]
    # Values of the order of 10.
    assert server_loss(scores, y).item() == pytest.approx(math.fsum(by_hand) / 50, rel=1e-12)
    assert server_loss(scores, y, reduction="none").tolist() == pytest.approx(by_hand, rel=1e-12)


def test_the_priced_loss_is_two_binary_log_losses() -> None:
    scores, client, server = (
        normal(50, 2, seed=7),
        *torch.rand(2, 50, generator=torch.Generator().manual_seed(8)),
    )
    by_hand = []
    for (s_m, s_e), m, e in zip(scores.tolist(), client.tolist(), server.tolist(), strict=True):
        q_m, q_e = 1 / (1 + math.exp(-s_m)), 1 / (1 + math.exp(-s_e))
        log_m = m * math.log(q_m) + (1 - m) * math.log(1 - q_m)
        by_hand.append(-log_m - e * math.log(q_e) - (1 - e) * math.log(1 - q_e))
    # 1 - q loses digits where q is near 1: logits here stay below 8, so 1e-3 of 1e-16 at least is left.
    assert priced_loss(scores, client, server, reduction="none").tolist() == pytest.approx(by_hand, rel=1e-11)
    assert priced_loss(scores, client, server).item() == pytest.approx(math.fsum(by_hand) / 50, rel=1e-11)


def test_the_priced_loss_of_several_servers_is_one_binary_log_loss_per_head() -> None:
    scores, targets = normal(40, 4, seed=8), torch.sigmoid(normal(40, 4, seed=9))
    heads = [[(z, t) for z, t in zip(row, target, strict=True)] for row, target in zip(scores, targets, strict=True)]
    by_hand = [
        math.fsum(-float(t * torch.sigmoid(z).log() + (1 - t) * torch.sigmoid(-z).log()) for z, t in row)
        for row in heads
    ]
    assert priced_loss(scores, targets[:, 0], targets[:, 1:], "none").tolist() == pytest.approx(by_hand, rel=1e-9)
    one = priced_loss(scores[:, :2], targets[:, 0], targets[:, 1], "none")
    assert torch.equal(priced_loss(scores[:, :2], targets[:, 0], targets[:, 1:2], "none"), one)
    with pytest.raises(ValueError, match="server_target"):
        priced_loss(scores, targets[:, 0], targets[:, 1:3])


def test_the_priced_loss_takes_bits_for_probabilities() -> None:
    scores, (client, server) = normal(30, 2, seed=9), outcomes(30, seed=10)
    assert priced_loss(scores, client, server) == priced_loss(scores, client.double(), server.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("c_e", "c_1"), PRICES)
@pytest.mark.parametrize("kind", KINDS)
def test_rejector_losses_are_finite_at_extreme_logits(kind: str, c_e: float, c_1: float, dtype: torch.dtype) -> None:
    for client, server in itertools.product((False, True), repeat=2):
        scores = torch.tensor(EXTREME, dtype=dtype, requires_grad=True)
        right = torch.full((len(scores),), client), torch.full((len(scores),), server)
        loss = rejector_loss(scores, *right, Costs(c_e, c_1), kind=kind, reduction="none")
        loss.sum().backward()
        assert loss.dtype == dtype
        assert torch.isfinite(loss).all()
        assert torch.isfinite(scores.grad).all()
        # ln p is at least -2e4 - ln 2, and a softmax at most 1; float32 carries seven digits.
        w = np.abs(weight_table(Costs(c_e, c_1), kind)[int(client), int(server)])
        assert loss.abs().max().item() <= w.sum() * (2e4 + 1) * (1 + 1e-6)
        assert scores.grad.abs().max().item() <= w.sum() * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_server_and_priced_losses_are_finite_at_extreme_logits(dtype: torch.dtype) -> None:
    for y in (0, 1):
        scores = torch.tensor(EXTREME, dtype=dtype, requires_grad=True)
        loss = server_loss(scores, torch.full((len(scores),), y), reduction="none")
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(scores.grad).all()
        assert (loss >= 0).all()
    for m, e in itertools.product((0.0, 0.4, 1.0), repeat=2):
        scores = torch.tensor(EXTREME, dtype=dtype, requires_grad=True)
        loss = priced_loss(scores, torch.full((len(scores),), m), torch.full((len(scores),), e), reduction="none")
        loss.sum().backward()
        assert loss.dtype == dtype
        assert torch.isfinite(loss).all()
        assert torch.isfinite(scores.grad).all()
        assert (loss >= 0).all()


def every_loss(reduction: str) -> list[Tensor]:
    scores, (client, server) = normal(17, 2, seed=11), outcomes(17, seed=12)
    costs = Costs(0.25, 1.25)
    rejector = [rejector_loss(scores, client, server, costs, kind=k, reduction=reduction) for k in KINDS]
    priced = priced_loss(scores, client, server, reduction=reduction)
    return [*rejector, priced, server_loss(scores, client.long(), reduction=reduction)]


def test_reductions_agree() -> None:
    for each, total, mean in zip(every_loss("none"), every_loss("sum"), every_loss("mean"), strict=True):
        assert each.shape == (17,)
        assert total.shape == mean.shape == ()
        # Seventeen doubles of the order of 1.
        assert total.item() == pytest.approx(math.fsum(each.tolist()), rel=1e-13)
        assert mean.item() == pytest.approx(math.fsum(each.tolist()) / 17, rel=1e-13)


def test_the_default_is_the_mean_of_the_shifted_loss() -> None:
    scores, (client, server) = normal(17, 2, seed=13), outcomes(17, seed=14)
    costs = Costs(0.25, 1.25)
    named = rejector_loss(scores, client, server, costs, kind="shifted", reduction="mean")
    assert rejector_loss(scores, client, server, costs) == named
    assert named != rejector_loss(scores, client, server, costs, kind="paper")


def test_a_constant_added_to_both_scores_changes_nothing() -> None:
    scores, (client, server) = normal(50, 2, seed=15), outcomes(50, seed=16)
    for kind in KINDS:
        before = rejector_loss(scores, client, server, Costs(0.1, 1.25), kind=kind, reduction="none")
        after = rejector_loss(scores + 100.0, client, server, Costs(0.1, 1.25), kind=kind, reduction="none")
        # Adding 100 rounds the scores by 1e-14.
        torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_single_precision_gives_the_same_loss() -> None:
    scores, (client, server) = normal(50, 2, seed=17), outcomes(50, seed=18)
    for kind in KINDS:
        double = rejector_loss(scores, client, server, Costs(0.1, 1.25), kind=kind)
        single = rejector_loss(scores.float(), client, server, Costs(0.1, 1.25), kind=kind)
        assert single.dtype == torch.float32
        # float32 carries seven digits.
        assert single.item() == pytest.approx(double.item(), rel=1e-5)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (4, 2, 1)])
def test_rejector_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    bits = torch.ones(4, dtype=torch.bool)
    with pytest.raises(ValueError, match="scores"):
        rejector_loss(torch.zeros(shape), bits, bits, Costs(0.1))


@pytest.mark.parametrize("shape", [(3,), (4, 1), (1,), ()])
def test_outcomes_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    good, bad = torch.ones(4, dtype=torch.bool), torch.ones(shape, dtype=torch.bool)
    for client, server in ((good, bad), (bad, good)):
        with pytest.raises(ValueError, match="client_correct"):
            rejector_loss(torch.zeros(4, 2), client, server, Costs(0.1))


@pytest.mark.parametrize("shape", [(3,), (4, 1), (1,)])
def test_priced_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        priced_loss(torch.zeros(4, 2), torch.ones(shape), torch.ones(shape))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    bits = torch.ones(4, dtype=torch.bool)
    with pytest.raises(SettingsError, match="paper, shifted, swapped"):
        rejector_loss(torch.zeros(4, 2), bits, bits, Costs(0.1), kind="bounded")
    with pytest.raises(ValueError, match="mean, sum, none"):
        rejector_loss(torch.zeros(4, 2), bits, bits, Costs(0.1), reduction="median")


def test_the_weighted_log_loss_takes_any_number_of_columns() -> None:
    scores, weights = normal(20, 5, seed=19), torch.rand(20, 5, generator=torch.Generator().manual_seed(20))
    p = torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)
    # Values of the order of 10.
    torch.testing.assert_close(
        weighted_log_loss(scores, weights),
        -(weights * torch.log(p)).sum(1).to(torch.float64),
        rtol=1e-12,
        atol=1e-12,
    )
    assert reduce(torch.tensor([1.0, 3.0]), "mean").item() == 2.0
