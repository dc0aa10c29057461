"""Rules that are trained when client and server are finished, and losses of the field in that form.

With a fixed client and a fixed server, all that these methods train is one number per input. Some learn from what each
answer is worth (right or wrong, or the probability of the truth), some weigh what each costs by the chance to ask.

Those of the field of edge and cloud choose the threshold of that number for an operating point and have no prices, so
one training serves every price: ``l2h compare`` chooses the threshold of each on calibration samples, and a device
without such samples takes the server for right wherever it is asked.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2h.methods.base import Traits
from l2h.methods.learned import Learned, LearnedRule, Prices, client_scores, local_score
from l2h.models.rejectors import LOG_FLOOR
from l2h.training import SamplePool

BOTH = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)
#: The logit of a server that is taken for right.
CERTAIN = 30.0
#: Of AppealNet's loss: samples on which the two losses differ by less count as easy.
BETA = 0.1
#: A threshold of a method whose paper has no prices.
CHOSEN = "the threshold is the one with the lowest risk on the calibration samples at the price"


def difference_loss(asks: Tensor, server_value: Tensor, client_value: Tensor) -> Tensor:
    """Return ``(tanh(u) - (v_e - v_m))^2`` for scores u (R, n) and the worth (n,) of both answers.

    Its minimiser is the expected difference.
    """
    return (torch.tanh(asks) - (server_value - client_value).to(asks.dtype)) ** 2


def expected_loss(asks: Tensor, local_cost: Tensor, remote_cost: Tensor) -> Tensor:
    """Return ``(1 - s) l_local + s l_remote`` with ``s = sigma(u)``: what a coin that asks with chance s would cost."""
    s = torch.sigmoid(asks)
    return (1 - s) * local_cost + s * remote_cost


def realizable_loss(defer: Tensor, of_truth: Tensor, server_correct: Tensor) -> Tensor:
    """Return ``-2 ln((exp(h_y) + 1[e = y] exp(h_d)) / (sum_i exp(h_i) + exp(h_d)))``.

    The scores h of the classes are log-probabilities, of which ``of_truth`` (n,) is that of y; ``defer`` (R, n) is h_d.
    """
    known = of_truth.expand(defer.shape)
    top = torch.where(server_correct, torch.logaddexp(known, defer), known)
    return 2 * (F.softplus(defer) - top)


def selective_query_loss(r: Tensor, client_correct: Tensor, server_correct: Tensor) -> Tensor:
    """Return the logistic loss of "the client is wrong and the server right"; r (R, n) above 0 is LOCAL."""
    target = (~client_correct & server_correct).to(r.dtype).expand(r.shape)
    return F.binary_cross_entropy_with_logits(-r, target, reduction="none")


def appeal_loss(r: Tensor, client_loss: Tensor, server_loss: Tensor) -> Tensor:
    """Return ``q l_m + (1 - q) l_e - BETA ln q`` with ``q = sigma(r)``, for scores r (R, n) and losses (n,).

    Its minimiser is ``q = min(1, BETA / (l_m - l_e))``, and 1 where the client's loss is not the larger one.
    """
    q = torch.sigmoid(r)
    return q * client_loss + (1 - q) * server_loss - BETA * F.logsigmoid(r)


def truth_values(pool: SamplePool) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities (n,) that client and server give to the truth."""
    y = pool.y[:, None]
    server = pool.server_probability.gather(1, y)[:, 0].log().clamp(min=LOG_FLOOR)
    return client_scores(pool).gather(1, y)[:, 0], server


def lone_logit(log_probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms (n,) of the client's largest probability and of the rest of 1."""
    best = log_probability.amax(-1)
    return best, torch.log1p(-best.exp().clamp(max=1 - 1e-6))


class OffloadingRule(LearnedRule):
    """A threshold on one number, chosen on calibration samples: the papers have none of their own."""

    published = None


class Offloading(Learned):
    """A method of one number, by which a device without calibration samples takes the server for right."""

    net, any_price, rule = "attached", True, OffloadingRule

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return the logits of "keeping it costs nothing" and of a server that is always right, (..., n, 2)."""
        keep = local_score(scores).double()
        return torch.stack([keep, torch.full_like(keep, CERTAIN)], dim=-1)


class _Difference(Learned):
    net, any_price, rule = "attached", True, OffloadingRule
    traits = BOTH

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return logits of two probabilities whose difference is the estimate, (..., n, 2)."""
        u = 2 * local_score(scores).double()
        return torch.stack([u, -u], dim=-1)


class Diff01(_Difference):
    """Regression of how much more often the server is right."""

    name, title = "diff-01", "Post-hoc Diff-01"
    reference = "Jitkrittum et al. 2023"
    equation = "(g - (1[e = y] - 1[m = y]))^2, REMOTE iff g >= c_e"
    change = (
        "g is the tanh of the net's score. The paper's net reads the client's probabilities alone; here it may also "
        "have a trunk, so that it has the budget of the others. The paper's rule is right at c_1 = 1. In a comparison "
        + CHOSEN
    )

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        return difference_loss(-local_score(scores), pool.server_correct.float(), pool.client_correct.float())


class DiffProb(_Difference):
    """Regression of how much more probability the server gives to the truth."""

    name, title = "diff-prob", "Post-hoc Diff-prob"
    reference = Diff01.reference
    equation = "(g - (p_e(y|x) - p_m(y|x)))^2, REMOTE iff g >= t"
    change = f"as for diff-01; {CHOSEN}. The server's softmax is scaled by a temperature on held-out samples"

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        client, server = truth_values(pool)
        return difference_loss(-local_score(scores), server.exp().detach(), client.exp().detach())


class ConfidNet(Offloading):
    """A head that learns which probability the client gives to the truth."""

    name, title = "confidnet", "ConfidNet (true class probability)"
    reference = "Corbiere, Thome, Bar-Hen, Cord and Perez 2019"
    equation = "(g - p_m(y|x))^2, REMOTE iff g <= t"
    change = (
        "the paper finds failures and has nobody to ask, so the rule knows nothing of the server: "
        f"{CHOSEN}; on a device without any, REMOTE iff 1 - g >= c_e. g reads what attached rejectors read, and the "
        "client's encoder is not tuned"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=False, asynchronous=None)

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        target = client_scores(pool).gather(1, pool.y[:, None])[:, 0].exp().detach()
        return (torch.sigmoid(local_score(scores)) - target) ** 2


class DiffTriage(Offloading):
    """A triage policy that learns on which samples the server's loss is the lower one."""

    name, title = "diff-triage", "Differentiable triage"
    reference = "Okati, De and Gomez-Rodriguez 2021"
    equation = "binary cross-entropy of s towards 1[l(m, y) > l(e, y)], l cross-entropy, REMOTE iff s >= t"
    change = (
        "the paper trains the classifier on what triage leaves to it, in turns with the policy. Here both classifiers "
        "are fixed, and one turn of the policy is all there is. The paper bounds the share sent by b and takes the "
        f"samples with the largest difference; here b = 1; {CHOSEN}; on a device without any, REMOTE iff s >= c_e"
    )
    traits = BOTH

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        client, server = truth_values(pool)
        return selective_query_loss(local_score(scores), client >= server, torch.ones_like(pool.client_correct))


class RealizableSurrogate(Learned):
    """Deferring in one softmax, with one logarithm for both ways to be right."""

    name, title = "realizable-surrogate", "RealizableSurrogate"
    reference = "Mozannar et al. 2023"
    equation = "-2 ln((exp(h_y) + 1[e = y] exp(h_d)) / sum_j exp(h_j)), REMOTE iff h_d >= max_i h_i"
    change = (
        "h_1..h_K are the client's log-probabilities and stay fixed, so that its consistency, which needs them to be "
        "trained, is lost: with nothing left to learn, exp(h_d) = (eta_e - p_e) / (1 - eta_e) for the server's class "
        "e, and 0 where that is negative. "
        f"The paper has no prices; {CHOSEN}"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=False)
    net, any_price = "attached", True
    rule: ClassVar[type[LearnedRule]] = OffloadingRule

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        return realizable_loss(-local_score(scores), truth_values(pool)[0], pool.server_correct)

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return logits whose probabilities are equal where h_d is the client's best score, (..., n, 2)."""
        best, rest = (value.double().expand(scores.shape[:-1]) for value in lone_logit(log_probability))
        return torch.stack([best - rest, -local_score(scores).double() - rest], dim=-1)


class AsymmetricSoftmax(RealizableSurrogate):
    """A softmax whose last entry states how likely the server is right, whatever the other entries say."""

    name, title = "asymmetric-softmax", "Asymmetric softmax L2D"
    reference = "Cao, Mozannar, Feng, Wei and An 2023"
    equation = "-ln p_y - 1[e = y] ln q - 1[e != y] ln(1 - q), q = exp(u_d) / (sum_j exp(u_j) - max_i exp(u_i))"
    change = (
        "j runs over the classes and d, i over the classes. u_1..u_K are the client's log-probabilities and stay "
        "fixed, so this is ova-l2d with another starting point. "
        "The paper has no prices. With prices the rule is REMOTE iff 1 - max_i p_i >= c_e + c_1 (1 - q), which equals "
        "the paper's rule, u_d >= max_i u_i, at c_e = 0 and c_1 = 1"
    )
    rule = LearnedRule

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        log_p = client_scores(pool)
        _, server = self.final(scores, log_p).to(scores.dtype).unbind(-1)
        target = pool.server_correct.to(scores.dtype).expand(server.shape)
        return F.binary_cross_entropy_with_logits(server, target, reduction="none") - truth_values(pool)[0]


class RealizableBayes(Learned):
    """What asking by a coin would cost, with a trained chance."""

    name, title = "realizable-bayes", "Realizable and Bayes-consistent L2D"
    reference = "Mao, Mohri and Zhong 2024"
    equation = "c Psi(s_y) + (1 - c) Psi(s_y + s_d), Psi(t) = 1 - t, s the softmax"
    change = (
        "the paper trains all scores in one stage. Here the client is fixed: all of the softmax that is not s_d is on "
        "its answer. With Psi(t) = 1 - t the loss is "
        "then (1 - s_d) 1[m != y] + s_d c, which needs no cost to be below 1"
    )
    traits = BOTH
    net = "attached"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        wrong = torch.where(pool.client_correct, prices.local_right, prices.local_wrong)
        return expected_loss(-local_score(scores), wrong, prices.remote(pool.server_correct))


class MixtureOfExperts(Learned):
    """The same coin, with log-losses in place of errors."""

    name, title = "mixture-of-experts", "Mixture of experts"
    reference = "Madras, Pitassi and Zemel 2018"
    equation = "(1 - s) l(m, y) + s (c_e + c_1 l(e, y)), l cross-entropy, REMOTE iff s >= 1/2"
    change = (
        "the paper trains the classifier by the same loss. Here the client is fixed, and c_1 weighs the server's loss"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=False)
    net = "attached"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        client, server = truth_values(pool)
        remote = prices.remote_right - (prices.remote_wrong - prices.remote_right) * server
        return expected_loss(-local_score(scores), -client, remote)


class PostHocRejector(Learned):
    """A cost-weighted classifier of the better side on top of the finished client."""

    name, title = "posthoc-rejector", "Post-hoc rejector"
    reference = "Narasimhan, Jitkrittum, Menon, Rawat and Kumar 2022"
    equation = "1[m != y] phi(-r) + c phi(r), phi logistic, LOCAL iff r > 0"
    change = (
        "the base model is the client. The loss is that of swapped-attached, which adds a student and so a teacher. "
        "The paper's other form, a plug-in of the expert's estimated error beside the base model's confidence, is "
        "ova-l2d here"
    )
    traits = BOTH
    net = "attached"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        r = local_score(scores)
        return (~pool.client_correct).to(r.dtype) * F.softplus(r) + prices.remote(pool.server_correct) * F.softplus(-r)


class SelectiveQuery(Offloading):
    """A router that is taught where the client is wrong and the server right."""

    name, title = "selective-query", "Selective query (router)"
    reference = "Kag, Fedorov, Gangrade, Whatmough and Saligrama 2023"
    equation = "binary cross-entropy of s towards 1[m != y and e = y], REMOTE iff s >= t"
    change = (
        "the paper trains base, router and global model in turns and searches the base's architecture. Here client and "
        "server are fixed. Its router reads the base's features alone. Here it may also have a trunk on the input, so "
        "that it has the budget of the others. t is the threshold with the lowest risk on the calibration samples at "
        "the price; on a device without any, REMOTE iff s >= c_e"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        return selective_query_loss(local_score(scores), pool.client_correct, pool.server_correct)


class AppealNet(Offloading):
    """A second head beside the classifier that says how easy an input is."""

    name, title = "appealnet", "AppealNet"
    reference = "Li, Li, Tian, Jiang and Xu 2021"
    equation = "q l(m, y) + (1 - q) l(e, y) + beta (-ln q), l cross-entropy, LOCAL iff q > t"
    change = (
        "the paper trains the classifier beside q by the same loss. Here the client is fixed, and only q is trained, "
        f"on its scores and a trunk of the given budget. beta is {BETA:g}. t is the threshold with the lowest risk on "
        "the calibration samples at the price; on a device without any, LOCAL iff 1 - q < c_e"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=False)

    def loss(self, scores: Tensor, pool: SamplePool, prices: object) -> Tensor:
        client, server = truth_values(pool)
        return appeal_loss(local_score(scores), -client, -server)


#: In the order of tables.
OFFLOADING = (SelectiveQuery, AppealNet)
POSTHOC = (
    PostHocRejector,
    Diff01,
    DiffProb,
    ConfidNet,
    DiffTriage,
    MixtureOfExperts,
    RealizableSurrogate,
    RealizableBayes,
    AsymmetricSoftmax,
)
