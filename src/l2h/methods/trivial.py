"""Rules that look at nothing."""

import numpy as np

from l2h import decision
from l2h.costs import Costs
from l2h.methods.base import Choice, Method, Rule
from l2h.methods.bench import Bench, Inputs


class _Share(Rule):
    """Send a share of the inputs, drawn by a coin."""

    def __init__(self, shares: dict[Costs, float], seed: int) -> None:
        self.shares, self.seed = shares, seed

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        coin = np.random.default_rng(self.seed).random(len(inputs))
        return Choice(coin < self.shares[costs], np.zeros(len(inputs)))


class AllLocal(Method):
    """Never ask."""

    name, title, family = "all-local", "Never ask", "trivial"
    equation = "LOCAL"

    def fit(self, bench: Bench) -> Rule:
        return _Share(dict.fromkeys(bench.costs, 0.0), bench.seed)


class AllRemote(Method):
    """Always ask."""

    name, title, family = "all-remote", "Always ask", "trivial"
    equation = "REMOTE"

    def fit(self, bench: Bench) -> Rule:
        return _Share(dict.fromkeys(bench.costs, 1.0), bench.seed)


class Random(Method):
    """Ask at random, as often as it would have paid on the calibration samples."""

    name, title, family = "random", "Random", "trivial"
    equation = "REMOTE with probability q, q = share of calibration samples where asking costs less"

    def fit(self, bench: Bench) -> Rule:
        """Choose the share for each price."""
        held = bench.calibration
        shares = {c: float(decision.oracle(held.client_correct, held.server_correct, c).mean()) for c in bench.costs}
        return _Share(shares, bench.seed)
