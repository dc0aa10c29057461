"""The student as an answerer: how likely it is right.

A rejector's student is taught the server's answers, so it can also answer itself. Its chance of being right is a
logistic model, whose weights ``w`` are fitted on calibration samples::

    p = sigmoid(w[0] + w[1] * log_odds + w[2] * agrees + w[3] * z[0] + ... + w[3 + S] * z[S])

    log_odds = log(max(b, 1e-6)) - log(max(1 - b, 1e-6)), where b is the largest value of the student's softmax
    agrees   = 1 where the student's class is the client's, else 0
    z        = the calibrated logits of the rejector's 1 + S heads (client, servers): scale * score + shift

An exported rejector computes it inside its graph by the same two functions.
"""

from typing import Any

import torch
from torch import Tensor

FEATURES = 2
_SMALLEST = 1e-6


def student_features(taught: Tensor, client_label: Tensor) -> Tensor:
    """Return ``log_odds`` and ``agrees`` (..., n, 2) of a student's scores (..., n, K) and the client's labels (n,)."""
    best = torch.softmax(taught, dim=-1).amax(-1)
    log_odds = torch.log(best.clamp(min=_SMALLEST)) - torch.log((1 - best).clamp(min=_SMALLEST))
    return torch.stack([log_odds, (taught.argmax(-1) == client_label).to(taught.dtype)], dim=-1)


def student_logit(features: Any, logits: Any, weights: Any) -> Any:
    """Return the logit (n,) of "the student is right", of numpy arrays or of tensors.

    It takes the features (n, 2) of :func:`student_features`, the logits ``z`` (n, 1 + S) and the weights ``w`` (4 +
    S,).
    """
    return weights[0] + features @ weights[1 : 1 + FEATURES] + logits @ weights[1 + FEATURES :]
