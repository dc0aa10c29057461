"""The L2H of 2024, for two classes."""

import torch
from torch import Tensor

from l2h.methods.base import Traits
from l2h.methods.learned import Learned, Prices, bounded_exp, local_score
from l2h.training import SamplePool


def binary_loss(
    r: Tensor,
    server_margin: Tensor,
    client_correct: Tensor,
    prices: Prices,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
) -> Tensor:
    """Return ``c_1 exp(beta/2 (-e y - r)) + c_e exp(-r) + 1[m y <= 0] exp(alpha r)``; r above 0 is LOCAL.

    Args:
        r: (R, n).
        server_margin: (n,), ``e y`` with y in {-1, 1}.
        client_correct: bool (n,).
        prices: of the rejectors.
        alpha: a parameter of the loss.
        beta: a parameter of the loss; (n,) where it depends on the sample.
    """
    wrong = prices.remote_wrong - prices.remote_right
    return (
        wrong * bounded_exp(beta / 2 * (-server_margin - r))
        + (prices.remote_right - prices.local_right) * bounded_exp(-r)
        + (~client_correct).float() * bounded_exp(alpha * r)
    )


def calibrating_beta(server_probability: Tensor) -> Tensor:
    """Return the beta of each sample with which the loss has the Bayes rule: ``sqrt(p_min / p_max)`` of its posterior.

    For e at the loss's own minimiser the server's term is ``2 c_1 sqrt(p_min p_max) exp(-beta r / 2)``, whose slope at
    r = 0 is ``-beta c_1 sqrt(p_min p_max)``: with this beta that is ``-c_1 p_min``, what the server's error costs.
    """
    high = server_probability.amax(-1).clamp(max=1 - 1e-6)
    return torch.sqrt((1 - high) / high)


class BinaryL2H(Learned):
    """Rejector and server in one exponential loss."""

    name, title = "binary-l2h", "Binary L2H (2024)"
    reference = "Wu et al. 2024"
    equation = "c_1 exp(beta/2 (-e y - r)) + c_e exp(-r) + 1[m y <= 0] exp(alpha r), LOCAL iff r > 0"
    change = (
        "the paper trains r and e together. Here only r is trained, and e is the log-odds of the shared server divided "
        "by beta, which is where the loss has its minimum in e. alpha is 1, and beta is computed for each sample from "
        "the server's posterior. This makes the loss calibrated"
    )
    traits = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=False)
    classes = 2
    net = "separate"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        p = pool.server_probability.clamp(1e-6, 1 - 1e-6)
        log_odds = torch.log(p[:, 1]) - torch.log(p[:, 0])
        sign = 2.0 * pool.y - 1
        beta = calibrating_beta(pool.server_probability)
        return binary_loss(local_score(scores), sign * log_odds / beta, pool.client_correct, prices, beta=beta)
