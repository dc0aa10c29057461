"""Learning with abstention, and learning to defer.

A rejector that abstains knows when the client errs, but not what the server would do. In learning to defer the expert
is fixed and the classifier is trained; here it is the other way round: what is left to train is the deferral score, and
the client's K scores stand where the classifier's would.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from l2h.costs import Costs
from l2h.methods.base import Traits
from l2h.methods.learned import Learned, Prices, bounded_exp, client_scores, local_score
from l2h.training import SamplePool


def softmax_deferral_loss(
    defer: Tensor, class_scores: Tensor, y: Tensor, remote_cost: Tensor, highest: Tensor | None = None
) -> Tensor:
    """Return ``-sum_i (C - c_i) ln softmax(g)_i`` over K classes and deferring, with ``c_i = 1[i != y]``.

    ``highest`` is C; where None, the highest cost of each sample. For costs of at most 1 it is the loss as it is known:
    ``-ln p_y - (1 - c_defer) ln p_defer``. ``defer`` and ``remote_cost`` are (R, n), ``class_scores`` (n, K) or
    (R, n, K).
    """
    everything = torch.cat([class_scores.expand(*defer.shape, -1), defer.unsqueeze(-1)], dim=-1)
    log_p = F.log_softmax(everything, dim=-1)
    if highest is None:
        highest = remote_cost.clamp(min=1.0)
    of_truth = log_p[..., :-1].gather(-1, y.expand(defer.shape).unsqueeze(-1))[..., 0]
    others = log_p[..., :-1].sum(-1) - of_truth
    return -(highest * of_truth + (highest - 1) * others + (highest - remote_cost) * log_p[..., -1])


def one_vs_all_loss(defer: Tensor, class_scores: Tensor, y: Tensor, server_correct: Tensor) -> Tensor:
    """Return ``psi(g_y) + sum_{i != y} psi(-g_i) + sum_j psi(-g_j) + sum_j 1[e_j = y] (psi(g_j) - psi(-g_j))``.

    psi is logistic, i runs over the classes and j over the servers. ``defer`` (R, n, S) holds g_j, ``class_scores``
    (n, K) one logit per class; ``server_correct`` is (n, S).
    """
    truth = F.one_hot(y, class_scores.shape[-1]).to(class_scores.dtype)
    classes = F.binary_cross_entropy_with_logits(class_scores, truth, reduction="none").sum(-1)
    target = server_correct.to(defer.dtype).expand(defer.shape)
    return classes + F.binary_cross_entropy_with_logits(defer, target, reduction="none").sum(-1)


def two_stage_score_loss(
    defer: Tensor, best_class: Tensor, client_correct: Tensor, remote_cost: Tensor, highest: Tensor
) -> Tensor:
    """Return ``(C - 1[m != y]) l(h, 0) + sum_j (C - c_j) l(h, j)``, l the log-loss over ``(max_i h_i, h_1, ..., h_S)``.

    ``best_class`` (n,) holds the largest score of the first stage's classifier, ``defer`` (R, n, S) the scores of the
    servers and ``remote_cost`` (R, n, S) their costs. C, the highest cost (R, 1), keeps every weight from being
    negative where a cost exceeds 1.
    """
    best = best_class.expand(defer.shape[:-1]).unsqueeze(-1)
    log_p = F.log_softmax(torch.cat([best, defer], dim=-1), dim=-1)
    servers = ((highest.unsqueeze(-1) - remote_cost) * log_p[..., 1:]).sum(-1)
    return -((highest - (~client_correct).float()) * log_p[..., 0] + servers)


def exponential_loss(r: Tensor, client_correct: Tensor, remote_cost: Tensor) -> Tensor:
    """Return ``1[m != y] exp(r) + c exp(-r)`` for scores r (R, n), above 0 for LOCAL, and costs c (R, n) or (R, 1).

    With a constant c it is the loss of abstaining with alpha = beta = 1 for a fixed predictor. Its minimiser is
    ``r = ln(c / P(m != y | x)) / 2``, above 0 (LOCAL) iff the client errs less often than abstaining costs.
    """
    return (~client_correct).float() * bounded_exp(r) + remote_cost * bounded_exp(-r)


def one_vs_all_logits(log_probability: Tensor) -> Tensor:
    """Return the logits of K binary classifiers that state the client's probabilities."""
    p = log_probability.exp().clamp(1e-6, 1 - 1e-6)
    return torch.log(p) - torch.log1p(-p)


class SeparateLWA(Learned):
    """A separate rejector trained to abstain at a constant cost."""

    name, title = "lwa-separate", "Separate-rejector LWA"
    reference = "Cortes, DeSalvo and Mohri 2016; for a fixed predictor Mohri, Andor, Choi, Collins, Mao and Zhong 2023"
    equation = "1[m != y] exp(r) + c exp(-r), LOCAL iff r > 0"
    change = (
        "the predictor is the client, which is not trained. Abstaining means asking the server, so the constant c is "
        "the average cost of asking: c_e + c_1 times the server's error on calibration samples"
    )
    traits = published_traits = Traits(separate=True, learns_client=True, learns_server=False, asynchronous=None)
    net = "separate"

    def prices(self, costs: Sequence[Costs], device: torch.device, server_accuracy: float) -> Prices:
        """Return prices with the mean cost of asking in both of the server's places."""
        prices = super().prices(costs, device, server_accuracy)
        mean = server_accuracy * prices.remote_right + (1 - server_accuracy) * prices.remote_wrong
        return Prices(prices.local_right, prices.local_wrong, mean, mean)

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        return exponential_loss(local_score(scores), pool.client_correct, prices.remote_right - prices.local_right)


def deferral_scores(scores: Tensor) -> Tensor:
    """Return (..., S) from the outputs (..., 1 + S) of a rejector: what it says for each server over the client."""
    return scores[..., 1:] - scores[..., :1]


def by_server(values: Tensor) -> Tensor:
    """Return (n, S) of what a pool holds as (n,) for one server."""
    return values if values.ndim == 2 else values.unsqueeze(-1)


class _BesideBestClass(Learned):
    net = "attached"

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return the client's best log-probability and the deferral scores, (..., n, 1 + S), to be compared."""
        best = log_probability.amax(-1).double().expand(scores.shape[:-1]).unsqueeze(-1)
        return torch.cat([best, deferral_scores(scores).double()], dim=-1)


class SoftmaxL2D(_BesideBestClass):
    """Deferring as a class of its own in one softmax."""

    name, title = "softmax-l2d", "Softmax-L2D"
    reference = "Mozannar and Sontag 2020"
    equation = "-sum_i (max_j c_j - c_i) ln softmax(g_1..g_K, g_d)_i, REMOTE iff g_d >= max_i g_i"
    change = (
        "g_1..g_K are the client's log-probabilities and stay fixed. Only g_d is trained. The rule is right where the "
        "client's probabilities are right and c_e + c_1 <= 1. Above 1 the loss also pulls at the scores of the other "
        "classes. These are fixed, so the method keeps too many inputs local. The paper's "
        "weight alpha is 1 here"
    )
    traits = published_traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=False)

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        return softmax_deferral_loss(
            -local_score(scores), client_scores(pool), pool.y, prices.remote(pool.server_correct)
        )


class ConstantSoftmaxL2D(_BesideBestClass):
    """The same with one constant for all samples, and scores of the client that are right for it."""

    name, title = "softmax-l2d-constant", "Softmax-L2D, one constant"
    reference, traits = SoftmaxL2D.reference, SoftmaxL2D.traits
    equation = "-sum_i (C - c_i) ln softmax(g_1..g_K, g_d)_i, C = max(1, c_e + c_1), REMOTE iff g_d >= max_i g_i"
    change = (
        "trained with the client, the loss would have g_i = ln(C - 1 + eta_i) in the end. So g_i is ln(C - 1 + p_i) "
        "here, with the client's probabilities p, and g_d = ln(C - 1 + exp(h)) with a trained h: REMOTE iff h >= "
        "max_i ln p_i. At C = 1 it is softmax-l2d. Above, it is as right as the client's probabilities are"
    )

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        lift = torch.log(prices.highest.to(scores.dtype) - 1)
        classes = torch.logaddexp(lift.unsqueeze(-1), client_scores(pool).to(scores.dtype))
        defer = torch.logaddexp(lift, -local_score(scores))
        return softmax_deferral_loss(defer, classes, pool.y, prices.remote(pool.server_correct), prices.highest)


class OvAL2D(Learned):
    """Deferring as a binary classifier of its own, which states how likely the server is right."""

    name, title = "ova-l2d", "OvA-L2D"
    reference = "Verma and Nalisnick 2022; with several servers Verma, Barrejon and Nalisnick 2023"
    equation = "psi(g_y) + sum psi(-g_i) + psi(-g_d) + 1[e = y] (psi(g_d) - psi(-g_d)), REMOTE iff g_d >= max_i g_i"
    change = (
        "g_1..g_K are the logits of the client's probabilities and stay fixed. Only g_d is trained. The paper has no "
        "prices. With prices the rule is REMOTE iff 1 - max_i sigma(g_i) >= c_e + c_1 (1 - sigma(g_d)), which equals "
        "the paper's rule at c_e = 0 and c_1 = 1"
    )
    traits = published_traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=False)
    net = "attached"
    any_price = several_servers = True

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        classes = one_vs_all_logits(client_scores(pool))
        return one_vs_all_loss(deferral_scores(scores), classes, pool.y, by_server(pool.server_correct))

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return logits of the client's largest probability, and of the stated one of each server."""
        best = log_probability.amax(-1).double().exp().clamp(max=1 - 1e-12)
        client = (torch.log(best) - torch.log1p(-best)).expand(scores.shape[:-1]).unsqueeze(-1)
        return torch.cat([client, deferral_scores(scores).double()], dim=-1)


class TwoStageConfidence(_BesideBestClass):
    """The classifier first, then a deferral score that competes with its best one."""

    name, title = "two-stage-confidence", "Two-stage confidence-L2D"
    reference = "Mao, Mohri, Mohri and Zhong 2023, score-based"
    equation = "1[m = y] l(h, 0) + (1 - c) l(h, 1), h = (max_i h_i, h_d), l the log-loss, REMOTE iff h_d >= max_i h_i"
    change = (
        "the client is the classifier of the first stage. The paper has no costs above 1. For these, the highest cost "
        "C replaces the 1"
    )
    traits = published_traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        cost = prices.remote(pool.server_correct)
        return two_stage_score_loss(
            deferral_scores(scores),
            client_scores(pool).amax(-1),
            pool.client_correct,
            cost if pool.server_correct.ndim == 2 else cost.unsqueeze(-1),
            prices.highest,
        )


class TwoStageSeparate(Learned):
    """The classifier first, then a rejector of its own."""

    name, title = "two-stage-separate", "Two-stage separate-rejector-L2D"
    reference = "Mao, Mohri, Mohri and Zhong 2023, predictor-rejector"
    equation = "1[m != y] phi(-r) + c phi(r), phi(t) = exp(-t), LOCAL iff r > 0"
    change = (
        "the client is the predictor of the first stage, and the server is the only expert. With a logistic phi this "
        "would be our swapped loss on a separate net. The L2H paper's table says that the method does not learn m, but "
        "1[m != y] is in its loss"
    )
    traits = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=True)
    published_traits = Traits(separate=True, learns_client=False, learns_server=True, asynchronous=True)
    net = "separate"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        return exponential_loss(local_score(scores), pool.client_correct, prices.remote(pool.server_correct))


#: In the order of tables.
DEFERRAL = (SeparateLWA, SoftmaxL2D, ConstantSoftmaxL2D, OvAL2D, TwoStageConfidence, TwoStageSeparate)
