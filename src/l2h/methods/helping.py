"""Learning to help: the paper's method, and ours."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from l2h import decision, metrics
from l2h.costs import Costs, FloatArray
from l2h.losses import priced_losses, weighted_log_loss
from l2h.methods.base import Choice, Traits
from l2h.methods.bench import Bench, Inputs
from l2h.methods.learned import Learned, LearnedRule, Prices, Trained
from l2h.training import Pool

ALL = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=True)
SEES_CLIENT = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)
PAPER = "Wu et al. 2025"


class PaperL2H(Learned):
    """The paper's: L2 as printed, on a separate rejector."""

    name, title = "l2h-paper", "L2H as published"
    reference = PAPER
    equation = "-(1 - c_e - c_1 + c_1 1[e = y]) ln p_remote - 1[m = y] ln p_local, LOCAL iff r_1 > r_2"
    change = "trained on samples the server has not fitted, as all here; the paper trains on the server's own"
    traits = published_traits = ALL
    net = "separate"

    def loss(self, scores: Tensor, pool: Pool, prices: Prices) -> Tensor:
        """L2, without a lower bound where c_e + c_1 > 1."""
        one = prices.local_wrong
        return _weighted(scores, one - prices.local(pool.client_correct), one - prices.remote(pool.server_correct))


class ShiftedSeparate(Learned):
    """L2 with weights that are never negative."""

    name, title = "shifted-separate", "L2H shifted, separate"
    ours = True
    reference = PAPER + "; bounded here"
    equation = "-(C - l_local) ln p_local - (C - l_remote) ln p_remote, C = max(1, c_e + c_1)"
    traits = ALL
    net = "separate"

    def loss(self, scores: Tensor, pool: Pool, prices: Prices) -> Tensor:
        """The shifted L2."""
        top = prices.highest
        return _weighted(scores, top - prices.local(pool.client_correct), top - prices.remote(pool.server_correct))


class SwappedSeparate(Learned):
    """Cost-weighted cross-entropy: each side is pushed by what the other costs."""

    name, title = "swapped-separate", "L2H swapped, separate"
    ours = True
    reference = PAPER + "; bounded here"
    equation = "-l_remote ln p_local - l_local ln p_remote"
    traits = ALL
    net = "separate"

    def loss(self, scores: Tensor, pool: Pool, prices: Prices) -> Tensor:
        """The swapped L2."""
        return _weighted(scores, prices.remote(pool.server_correct), prices.local(pool.client_correct))


class ShiftedAttached(ShiftedSeparate):
    """The same with a rejector that sees the client's scores and has a student of the server."""

    name, title = "shifted-attached", "L2H shifted, attached"
    traits = SEES_CLIENT
    net = "attached"
    student = True


class SwappedAttached(SwappedSeparate):
    """Likewise."""

    name, title = "swapped-attached", "L2H swapped, attached"
    traits = SEES_CLIENT
    net = "attached"
    student = True


class PricedRule(LearnedRule):
    """Two calibrated probabilities and the price: what ``HelpSystem.predict`` does."""

    def __init__(self, method: Learned, trained: Trained, bench: Bench) -> None:
        super().__init__(method, trained, bench)
        held = bench.calibration
        scores = self.scores(held.inputs, bench.costs[0])
        truth = (held.client_correct, held.server_correct)
        self.platt = [metrics.fit_platt(scores[:, head], truth[head]) for head in (0, 1)]

    def heads(self, inputs: Inputs) -> tuple[FloatArray, FloatArray]:
        """``q_m`` and ``q_e``."""
        scores = self.scores(inputs, self.bench.costs[0])
        q_m, q_e = (metrics.apply_platt(scores[:, head], *self.platt[head]) for head in (0, 1))
        return q_m, q_e

    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        """The expected gain in accuracy."""
        q_m, q_e = self.heads(inputs)
        return q_e - q_m

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        """REMOTE iff asking is expected to save."""
        q_m, q_e = self.heads(inputs)
        right = np.stack([q_m, q_e], axis=1)
        return Choice(decision.Judgement(right, right).remote(costs), q_e - q_m)


class PricedSeparate(Learned):
    """Two probabilities from the input alone; one training answers for every price."""

    name, title = "priced-separate", "L2H priced, separate"
    ours = True
    reference = "L2H"
    equation = "binary cross-entropy of q_m and q_e, REMOTE iff 1 - q_m >= c_e + c_1 (1 - q_e)"
    traits = ALL
    net = "separate"
    soft = any_price = True
    rule: ClassVar[type[LearnedRule]] = PricedRule

    def loss(self, scores: Tensor, pool: Pool, prices: Prices) -> Tensor:
        """Towards the outcomes mixed with the server's softmax of them."""
        return priced_losses(scores, pool.client_target, pool.server_target)

    def fit(self, bench: Bench) -> LearnedRule:
        """Train one rejector, then calibrate its two heads."""
        return self.rule(self, self.train(bench), bench)


class PricedAttached(PricedSeparate):
    """What ``l2h train`` trains by default."""

    name, title = "priced-attached", "L2H priced, attached (default)"
    traits = SEES_CLIENT
    net = "attached"
    student = True


def _weighted(scores: Tensor, local: Tensor, remote: Tensor) -> Tensor:
    both = torch.broadcast_tensors(local, remote)
    return weighted_log_loss(scores, torch.stack(both, dim=-1))
