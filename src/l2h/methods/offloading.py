"""Rules of the field of edge and cloud, which counts the device's work: selective query, and appeals to the cloud.

Both learn one number per input and choose its threshold for an operating point. Neither paper has prices, so one
training serves every price: ``l2h compare`` chooses the threshold of each on calibration samples, and a device without
such samples takes the server for right wherever it is asked.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from l2h.methods.base import Traits
from l2h.methods.learned import Learned, LearnedRule, client_scores, local_score
from l2h.models.rejectors import LOG_FLOOR
from l2h.training import SamplePool

#: The logit of a server that is taken for right.
CERTAIN = 30.0
#: Of AppealNet's loss: samples on which the two losses differ by less count as easy.
BETA = 0.1


def selective_query_loss(r: Tensor, client_correct: Tensor, server_correct: Tensor) -> Tensor:
    """Return the logistic loss of "the client is wrong and the server right"; r (R, n) above 0 is LOCAL."""
    target = (~client_correct & server_correct).to(r.dtype).expand(r.shape)
    return F.binary_cross_entropy_with_logits(-r, target, reduction="none")


def appeal_loss(r: Tensor, client_loss: Tensor, server_loss: Tensor, beta: float = BETA) -> Tensor:
    """Return ``q l_m + (1 - q) l_e - beta ln q`` with ``q = sigma(r)``, for scores r (R, n) and losses (n,).

    Its minimiser is ``q = min(1, beta / (l_m - l_e))``, and 1 where the client's loss is not the larger one.
    """
    q = torch.sigmoid(r)
    return q * client_loss + (1 - q) * server_loss - beta * F.logsigmoid(r)


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
        y = pool.y[:, None]
        client = -client_scores(pool).gather(1, y)[:, 0]
        server = -pool.server_probability.gather(1, y)[:, 0].log().clamp(min=LOG_FLOOR)
        return appeal_loss(local_score(scores), client, server)


#: In the order of tables.
OFFLOADING = (SelectiveQuery, AppealNet)
