"""A cascade by confidence: who answers, what it costs, and thresholds with the lowest risk on held-out samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from l2h.costs import Costs
from l2h.decision import CLIENT, Answerer
from l2h.methods import Cascade, cascade_losses, fit_cascade

THREE = (CLIENT, Answerer("box", remote=True), Answerer("cloud", remote=True))
PRICES = {"box": Costs(0.05, 1.0), "cloud": Costs(0.25, 1.25)}


def test_each_is_asked_in_turn_and_paid_for() -> None:
    confidence = np.array([[0.9, 0.1, 0.1], [0.5, 0.8, 0.1], [0.2, 0.3, 0.1], [0.2, 0.3, 0.9]])
    chosen = Cascade((0.5, 0.6)).choose(confidence)
    assert chosen.tolist() == [0, 1, 2, 2]  # at the threshold the next is asked
    correct = np.array([[True] * 3, [False, True, False], [False, False, True], [True, True, False]])
    # 0; the box right: 0.05; the cloud right, after the box: 0.25 + 0.05; the cloud wrong: 0.25 + 1.25 + 0.05.
    assert cascade_losses(correct, chosen, THREE, PRICES) == pytest.approx([0.0, 0.05, 0.3, 1.55])


def test_of_one_server_it_is_the_confidence_threshold() -> None:
    chosen = Cascade((0.5,)).choose(np.array([[0.9, 0.2], [0.4, 0.2]]))
    losses = cascade_losses(np.array([[False, True], [False, False]]), chosen, THREE[:2], {"box": PRICES["box"]})
    assert losses == pytest.approx([1.0, 1.05])


def test_no_other_thresholds_at_the_quantiles_are_better() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random((200, 3))
    correct = rng.random((200, 3)) < confidence * [0.9, 1.0, 1.1]
    found = fit_cascade(confidence, correct, THREE, PRICES)
    best = cascade_losses(correct, found.choose(confidence), THREE, PRICES).mean()
    shares = np.linspace(0, 1, 31)  # about the square root of a thousand
    some = [(-np.inf, *np.quantile(confidence[:, k], shares)) for k in (0, 1)]
    for pair in itertools.islice(itertools.product(*some), 0, None, 7):
        by_hand = 0.0
        for p, right in zip(confidence, correct, strict=True):
            if p[0] > pair[0]:
                by_hand += not right[0]
            elif p[1] > pair[1]:
                by_hand += 0.05 + (not right[1])
            else:
                by_hand += 0.05 + 0.25 + 1.25 * (not right[2])
        assert best <= by_hand / 200 + 1e-12
