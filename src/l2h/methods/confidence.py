"""Thresholds on the client's own scores: nothing is trained but one number per price."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from l2h.costs import Costs, FloatArray
from l2h.methods.base import Method, ThresholdRule, Traits
from l2h.methods.bench import Bench, Inputs
from l2h.training.targets import fit_temperature

LogProbability = npt.NDArray[np.float32]
Doubt = Callable[[LogProbability], FloatArray]


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

    def __init__(self, bench: Bench, doubt: Doubt) -> None:
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

    @staticmethod
    def doubt(log_probability: LogProbability) -> FloatArray:
        """What is compared with the threshold."""
        return largest(log_probability)

    def fit(self, bench: Bench) -> ThresholdRule:
        """Choose the thresholds when first asked."""
        return _Doubtful(bench, self.doubt)


class Margin(Confidence):
    """The distance of its two largest probabilities."""

    name, title = "margin", "Confidence: margin"
    equation = "REMOTE iff p_m(first|x) - p_m(second|x) <= t"
    published_traits = None

    @staticmethod
    def doubt(log_probability: LogProbability) -> FloatArray:
        return margin(log_probability)


class Entropy(Confidence):
    """The entropy of its softmax."""

    name, title = "entropy", "Confidence: entropy"
    equation = "REMOTE iff H(p_m(.|x)) >= t"
    published_traits = None

    @staticmethod
    def doubt(log_probability: LogProbability) -> FloatArray:
        return entropy(log_probability)


class Temperature(Confidence):
    """Its largest probability after temperature scaling."""

    name, title = "temperature", "Confidence: temperature-scaled"
    reference = "Guo et al. 2017; Chow 1970"
    equation = "REMOTE iff max_i softmax(log p_m(.|x) / T)_i <= t, T by log-loss"
    change = "T and t are fitted on the calibration samples"
    published_traits = None

    def fit(self, bench: Bench) -> ThresholdRule:
        """Fit T on the calibration samples."""
        held = bench.calibration
        temperature = fit_temperature(torch.from_numpy(held.client.log_probability), torch.from_numpy(held.y))

        def doubt(log_probability: LogProbability) -> FloatArray:
            scaled = torch.from_numpy(log_probability).double() / temperature
            return largest(torch.log_softmax(scaled, dim=-1).numpy())

        return _Doubtful(bench, doubt)
