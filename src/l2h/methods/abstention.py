"""Learning with abstention: a rejector that knows when the client errs, but not what the server would do."""

from collections.abc import Sequence

import torch
from torch import Tensor

from l2h.costs import Costs
from l2h.methods.base import Traits
from l2h.methods.learned import Learned, Prices, bounded_exp, local_score
from l2h.training import SamplePool


def abstention_loss(r: Tensor, client_correct: Tensor, cost: Tensor) -> Tensor:
    """Return ``1[m != y] exp(r) + c exp(-r)``: the exponential loss with alpha = beta = 1 for a fixed predictor.

    Its minimiser is ``r = ln(c / P(m != y | x)) / 2``, above 0 (LOCAL) iff the client errs less often than abstaining
    costs.

    Args:
        r: (R, n), above 0 for LOCAL.
        client_correct: bool (n,).
        cost: (R, 1), the constant cost of abstaining.
    """
    return (~client_correct).float() * bounded_exp(r) + cost * bounded_exp(-r)


class SeparateLWA(Learned):
    """A separate rejector trained to abstain at a constant cost."""

    name, title = "lwa-separate", "Separate-rejector LWA"
    reference = "Cortes, DeSalvo and Mohri 2016; for a fixed predictor Mohri et al. 2023"
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
        return abstention_loss(local_score(scores), pool.client_correct, prices.remote_right - prices.local_right)
