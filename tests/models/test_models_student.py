"""What a student's chance of being right is computed from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logit, softmax

from l2h.models.student import student_features, student_logit


def test_the_features_are_log_odds_and_agreement() -> None:
    taught = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 50, 7)) * 4)
    client = torch.from_numpy(np.random.default_rng(1).integers(0, 7, 50))
    log_odds, agrees = student_features(taught, client).unbind(-1)
    best = softmax(taught.numpy(), axis=-1).max(axis=-1)
    assert log_odds.numpy() == pytest.approx(np.clip(logit(best), None, logit(1 - 1e-6)), abs=1e-6)
    assert np.array_equal(agrees.numpy() == 1, taught.numpy().argmax(axis=-1) == client.numpy())
    assert set(agrees.unique().tolist()) == {0.0, 1.0}


def test_a_sure_student_has_finite_log_odds() -> None:
    features = student_features(torch.tensor([[200.0, 0.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    assert features.tolist() == [[pytest.approx(np.log(1e6), rel=1e-5), 0.0], [pytest.approx(0.0, abs=1e-6), 1.0]]


def test_the_logit_is_the_same_of_arrays_and_of_tensors() -> None:
    rng = np.random.default_rng(2)
    features, logits, weights = rng.normal(size=(20, 2)), rng.normal(size=(20, 3)), rng.normal(size=6)
    by_hand = [weights[0] + weights[1:3] @ f + weights[3:] @ z for f, z in zip(features, logits, strict=True)]
    assert student_logit(features, logits, weights) == pytest.approx(by_hand)
    tensors = (torch.from_numpy(array) for array in (features, logits, weights))
    assert student_logit(*tensors).numpy() == pytest.approx(by_hand)
