"""The surrogate losses. All by log-softmax, so that large logits neither overflow nor vanish.

With ``(p_local, p_remote) = softmax(r1, r2)`` every rejector loss here has the form
``-w_local * ln p_local - w_remote * ln p_remote``; the kinds differ in their weights only, which depend on nothing
but whether the client and the server are right:

| kind      | w_local        | w_remote        | |
|-----------|----------------|-----------------|-|
| `paper`   | 1 - l_local    | 1 - l_remote    | unbounded below: w_remote < 0 where c_e + c_1 > 1 and e is wrong |
| `shifted` | C - l_local    | C - l_remote    | C = max(1, c_e + c_1): no weight is negative |
| `swapped` | l_remote       | l_local         | cost-weighted cross-entropy: no weight is negative |
| `released`| 1 - l_local    | 1 - c_e + c_1 1[e wrong] | the authors' released code: the sign of c_1 is reversed |

All but `released` have the Bayes rule of the generalized 0-1 loss as the decision of their minimiser. `released` is
bounded below where c_e is at most 1, but it rewards asking where the server is wrong. It is here to repeat the authors'
results.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from l2h.costs import Costs
from l2h.errors import SettingsError

RejectorKind = Literal["paper", "shifted", "swapped", "released"]
Reduction = Literal["mean", "sum", "none"]
KINDS: tuple[str, ...] = get_args(RejectorKind)


def server_loss(scores: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Return L1: cross-entropy of the server's scores (n, K), which knows nothing of rejector, client or costs.

    Example:
        >>> server_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.6931)
    """
    return F.cross_entropy(scores, y, reduction=reduction)


def rejector_loss(
    scores: Tensor,
    client_correct: Tensor,
    server_correct: Tensor,
    costs: Costs,
    kind: RejectorKind = "shifted",
    reduction: Reduction = "mean",
) -> Tensor:
    """Return L2 of a kind (``paper``, ``shifted``, ``swapped``, ``released``) of scores (n, 2), as (local, remote).

    Example:
        >>> rejector_loss(torch.zeros(1, 2), torch.tensor([True]), torch.tensor([True]), Costs(c_e=0.5), kind="paper")
        tensor(1.0397)
    """
    if scores.ndim != 2 or scores.shape[1] != 2:
        raise ValueError(f"scores must be (n, 2) as (local, remote); got {tuple(scores.shape)}")
    if client_correct.shape != scores.shape[:1] or server_correct.shape != scores.shape[:1]:
        raise ValueError(
            f"client_correct and server_correct must be ({len(scores)},); "
            f"got {tuple(client_correct.shape)} and {tuple(server_correct.shape)}"
        )
    table = torch.as_tensor(weight_table(costs, kind), dtype=scores.dtype, device=scores.device)
    weights = table[client_correct.long(), server_correct.long()]
    return reduce(weighted_log_loss(scores, weights), reduction)


def priced_loss(scores: Tensor, client_target: Tensor, server_target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Return the binary cross-entropy of the priced heads.

    Args:
        scores: (n, 2), logits of ``q_m = P(m right | x)`` and ``q_e = P(e right | x)``; (n, 1 + S) of S servers.
        client_target: (n,) in [0, 1]: whether m is right, or a probability of it.
        server_target: (n,) in [0, 1]: whether e is right, or a probability of it; (n, S) of S servers.
        reduction: over samples; the heads of a sample are added.
    """
    several = (*scores.shape[:1], scores.shape[-1] - 1)
    for name, target in (("client_target", client_target), ("server_target", server_target)):
        if target.shape != scores.shape[:1] and (name == "client_target" or target.shape != several):
            raise ValueError(f"{name} must be ({len(scores)},), one per sample; got {tuple(target.shape)}")
    return reduce(priced_losses(scores, client_target, server_target), reduction)


def priced_losses(scores: Tensor, client_target: Tensor, server_target: Tensor) -> Tensor:
    """Return the losses (..., n) of each sample, from scores (..., n, 1 + S), targets (n,), and (n,) or (n, S)."""
    targets = torch.column_stack([client_target, server_target]).to(scores.dtype).expand_as(scores)
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(-1)


def weight_table(costs: Costs, kind: str) -> npt.NDArray[np.float64]:
    """Return the weights ``(w_local, w_remote)`` of each outcome: array ``[client right, server right, 2]``."""
    local = np.array([costs.c_ce, costs.c_cc])[:, None] * np.ones((1, 2))
    remote = np.array([costs.c_se, costs.c_sc])[None, :] * np.ones((2, 1))
    if kind == "paper":
        return np.stack([costs.c_ce - local, costs.c_ce - remote], axis=-1)
    if kind == "released":
        reversed_remote = 2 * costs.c_sc - remote
        return np.stack([costs.c_ce - local, costs.c_ce - reversed_remote], axis=-1)
    if kind == "shifted":
        return np.stack([costs.highest - local, costs.highest - remote], axis=-1)
    if kind == "swapped":
        return np.stack([remote, local], axis=-1)
    raise SettingsError(f"unknown rejector loss {kind!r}; known: {', '.join(KINDS)}")


def weighted_log_loss(scores: Tensor, weights: Tensor) -> Tensor:
    """Return ``-sum_k weights_k * log_softmax(scores)_k`` over the last axis."""
    return -(weights * F.log_softmax(scores, dim=-1)).sum(-1)


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """Apply ``mean``, ``sum`` or ``none``."""
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    if reduction == "none":
        return values
    raise ValueError(f"unknown reduction {reduction!r}; known: mean, sum, none")
