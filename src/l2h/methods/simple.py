"""Rules without a net: those that look at nothing, thresholds on the client's own scores, and references.

A reference knows what no device knows. The others are measured against it; it can never be deployed.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from l2h import decision, metrics
from l2h.costs import Costs, FloatArray
from l2h.errors import DataError
from l2h.methods.base import Bench, Choice, Inputs, Method, Outcomes, Rule, ThresholdRule, Traits
from l2h.training.targets import fit_temperature

LogProbability = npt.NDArray[np.float32]


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
        held = bench.calibration
        shares = {c: float(decision.oracle(held.client_correct, held.server_correct, c).mean()) for c in bench.costs}
        return _Share(shares, bench.seed)


def largest(log_probability: LogProbability) -> FloatArray:
    """Return one less the largest probability."""
    return np.asarray(1 - np.exp(log_probability.astype(np.float64)).max(axis=1))


def margin(log_probability: LogProbability) -> FloatArray:
    """Return how close the two largest probabilities are: one less their difference."""
    two = np.sort(np.exp(log_probability.astype(np.float64)), axis=1)[:, -2:]
    return np.asarray(1 - (two[:, 1] - two[:, 0]))


def entropy(log_probability: LogProbability) -> FloatArray:
    """Return the entropy in nats."""
    log_p = log_probability.astype(np.float64)
    p = np.exp(log_p)
    return np.asarray(-np.where(p > 0, p * log_p, 0.0).sum(axis=1))


class _Doubtful(ThresholdRule):
    """Send what the client doubts."""

    def __init__(self, bench: Bench, doubt: Callable[[LogProbability], FloatArray]) -> None:
        super().__init__(bench)
        self.doubt = doubt

    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        """The doubt; of a client that gives labels only, the same for all."""
        if not inputs.client.has_scores:
            return np.zeros(len(inputs))
        return self.doubt(inputs.client.log_probability)


class Confidence(Method):
    """The client's largest probability."""

    name, title, family = "confidence", "Confidence: largest probability", "confidence"
    reference = "Chow 1970; Herbei and Wegkamp 2006"
    equation = "REMOTE iff max_i p_m(i|x) <= t"
    change = (
        "Chow's t is 1 - c for a constant cost c. Here t is the threshold with the lowest risk on the calibration "
        "samples at the price"
    )
    traits = Traits(separate=False, learns_client=True, learns_server=False, asynchronous=None)
    published_traits: ClassVar[Traits | None] = traits
    reads = "the client's scores"
    doubt = staticmethod(largest)

    def fit(self, bench: Bench) -> ThresholdRule:
        return _Doubtful(bench, self.doubt)


class Margin(Confidence):
    """The distance of its two largest probabilities."""

    name, title = "margin", "Confidence: margin"
    equation = "REMOTE iff p_m(first|x) - p_m(second|x) <= t"
    published_traits = None
    doubt = staticmethod(margin)


class Entropy(Confidence):
    """The entropy of its softmax."""

    name, title = "entropy", "Confidence: entropy"
    equation = "REMOTE iff H(p_m(.|x)) >= t"
    published_traits = None
    doubt = staticmethod(entropy)


class Temperature(Confidence):
    """Its largest probability after temperature scaling."""

    name, title = "temperature", "Confidence: temperature-scaled"
    reference = "Guo et al. 2017; Chow 1970"
    equation = "REMOTE iff max_i softmax(log p_m(.|x) / T)_i <= t, T by log-loss"
    change = "T and t are fitted on the calibration samples"
    published_traits = None

    def fit(self, bench: Bench) -> ThresholdRule:
        held = bench.calibration
        temperature = fit_temperature(torch.from_numpy(held.client.log_probability), torch.from_numpy(held.y))

        def doubt(log_probability: LogProbability) -> FloatArray:
            scaled = torch.from_numpy(log_probability).double() / temperature
            return largest(torch.log_softmax(scaled, dim=-1).numpy())

        return _Doubtful(bench, doubt)


class ReferenceRule(Rule):
    """A rule that is handed outcomes instead of inputs."""

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        raise DataError("a reference decides on outcomes, not on inputs: call decide_knowing(outcomes, costs)")

    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        raise NotImplementedError


class _OracleRule(ReferenceRule):
    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        client, server = outcomes.client_correct, outcomes.server_correct
        return Choice(decision.oracle(client, server, costs), server.astype(float) - client.astype(float))


class Oracle(Method):
    """Sends exactly where asking costs less."""

    name, title, family = "oracle", "Oracle", "reference"
    equation = "REMOTE iff l_remote < l_local"

    def fit(self, bench: Bench) -> ReferenceRule:
        return _OracleRule()


class _LabelFreeRule(ReferenceRule):
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        log_p = torch.from_numpy(outcomes.server_log_probability).double()
        p = torch.softmax(log_p / self.temperature, dim=-1).numpy()
        q_m, q_e = p[np.arange(len(p)), outcomes.client.label], p.max(axis=1)
        # Ranked as the frontier's bound is: by the server's softmax as it is.
        score = metrics.label_free_score(outcomes.server_probability, outcomes.client.label)
        right = np.stack([q_m, q_e], axis=1)
        return Choice(decision.Judgement(right, right).remote(costs), score)


class LabelFree(Method):
    """Knows the server's softmax of every input, without asking, but not the truth."""

    name, title, family = "label-free", "Label-free bound", "reference"
    reads = "the server's probabilities"
    equation = "REMOTE iff 1 - p_e(m(x)|x) >= c_e + c_1 (1 - max p_e(.|x)); ranked by max p_e - p_e(m(x))"
    change = (
        "the server's softmax is temperature-scaled on the calibration samples. It does not bound rules that also know "
        "what the client does"
    )

    def fit(self, bench: Bench) -> ReferenceRule:
        held = bench.calibration
        return _LabelFreeRule(fit_temperature(torch.from_numpy(held.server_log_probability), torch.from_numpy(held.y)))


#: In the order of tables.
SIMPLE = (AllLocal, AllRemote, Random, Confidence, Margin, Entropy, Temperature)
REFERENCES = (LabelFree, Oracle)
