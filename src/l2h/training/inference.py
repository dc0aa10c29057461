"""Running trained networks over arrays, in chunks, so that a large array need not fit on the device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.classifiers import ClassifierAnswers
from l2h.training.job import view_tensor
from l2h.training.loop import Context
from l2h.training.rejectors import RejectorBatch
from l2h.training.server import log_probabilities

CHUNK = 8192


def rejector_scores(
    rejectors: RejectorBatch,
    X: npt.NDArray[Any],
    answers: ClassifierAnswers,
    context: Context,
    *,
    student: bool = False,
) -> npt.NDArray[np.float32]:
    """What each rejector says of each input, (R, n, 2); or what its student says, (R, n, K)."""
    parts = []
    for start in range(0, len(X), CHUNK):
        chunk = slice(start, start + CHUNK)
        view = view_tensor(answers.at(chunk), context.device)
        parts.append(rejectors.scores(_on_device(X[chunk], context), view, context, student=student).cpu().numpy())
    return np.concatenate(parts, axis=1)


def server_log_probabilities(server: nn.Module, X: npt.NDArray[Any], context: Context) -> npt.NDArray[np.float32]:
    """The server's log-softmax, (n, K)."""
    parts = [
        log_probabilities(server, _on_device(X[start : start + CHUNK], context), context)
        for start in range(0, len(X), CHUNK)
    ]
    return torch.cat(parts).cpu().numpy()


def _on_device(X: npt.NDArray[Any], context: Context) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(X)).to(context.device)
