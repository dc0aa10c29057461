"""Made audits of which the truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from l2h import Costs
from l2h.audits import AuditHeader, AuditLog, AuditPair, AuditPairs

CLASSES = ("a", "b", "c")


def header(**changes: Any) -> AuditHeader:
    values = {"bundle": "0123456789ab", "name": "made", "classes": CLASSES, "answerers": ("client", "server")}
    return AuditHeader(**values | {"local": 1, "platt": (((1.0, 0.0), (1.0, 0.0)),), "device": "cam-7"} | changes)


def pair(number: int, **changes: Any) -> AuditPair:
    values: dict[str, Any] = {"kind": "audit", "id": f"{number:016x}", "time": 1000.0 + number, "probability": 0.01}
    values |= {"reason": "not_worth_asking", "which": 0, "heads": (2.0, 3.0), "client": 0, "server": 0}
    return AuditPair(**values | {"by": "server", "costs": {"c_e": 0.1, "c_1": 1.0}} | changes)


def write(folder: Any, pairs: list[AuditPair], **changes: Any) -> AuditLog:
    """A log that has written these pairs below a header."""
    log = AuditLog(folder)
    log.begin(header(**changes))
    log.write(pairs)
    return log


@dataclass(frozen=True)
class World:
    """Traffic whose truth is known: each side is right with a probability of its own, which the heads state or not."""

    share: float = 0.02  # of audits
    other: float = 0.05  # of audits in the second half of the traffic
    shift: float = 0.0  # of the client's true logit below the stated one
    server_shift: float = 0.0
    labelled: float = 0.5  # share of the pairs that get a label
    costs: Costs = field(default_factory=lambda: Costs(c_e=0.1, c_1=1.25))

    def draw(self, n: int, seed: int) -> tuple[AuditPairs, dict[str, float]]:
        """Return the pairs of n inputs, and what is true of all of them."""
        rng, k = np.random.default_rng(seed), len(CLASSES)
        heads = np.stack([rng.normal(1.5, 1.5, n), rng.normal(2.5, 1.0, n)], axis=1)
        stated, true = (1 / (1 + np.exp(-z)) for z in (heads, heads - [self.shift, self.server_shift]))
        y, right = rng.integers(0, k, n), rng.random((n, 2)) < true
        answer = np.where(right, y[:, None], (y[:, None] + rng.integers(1, k, (n, 2))) % k)
        four = [self.costs.c_cc, self.costs.c_ce, self.costs.c_sc, self.costs.c_se]
        asked = four[1] - stated[:, 0] >= four[3] - (four[3] - four[2]) * stated[:, 1]
        local, remote = np.where(right[:, 0], *four[:2]), np.where(right[:, 1], *four[2:])
        agree = answer[:, 0] == answer[:, 1]
        truth = {
            "agreement": agree[~asked].mean(),
            "asked": asked.mean(),
            "never": np.where(asked, local - remote, 0).mean(),
            "always": np.where(asked, 0, remote - local).mean(),
            "risk": np.where(asked, remote, local).mean(),
        }
        chance = np.where(asked, 10 * self.share, np.where(np.arange(n) < n // 2, self.share, self.other))
        rows = np.flatnonzero(rng.random(n) < chance)
        m, label = len(rows), np.where(rng.random(len(rows)) < self.labelled, y[rows], -1)
        pairs = AuditPairs(
            header=header(), id=tuple(map(str, rows)), time=rows + 0.0, asked=asked[rows], probability=chance[rows],
            reason=np.full(m, "any"), which=np.zeros(m, int), heads=heads[rows], client=answer[rows, 0],
            student=np.full(m, -1), local=np.zeros(m, int), by=np.ones(m, int), server=answer[rows, 1],
            fault=np.full(m, ""), costs=np.tile(four, (m, 1)), label=label,
        )  # fmt: skip
        return pairs, truth
