"""Audit files of a device whose heads are known to be wrong in a known way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from l2h import Costs
from l2h.audits import AuditHeader, AuditLog, AuditPair
from l2h.bundle import Manifest

SHARE = 0.05


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def write_audits(
    folder: Path,
    manifest: Manifest,
    inputs: int = 20_000,
    *,
    client: tuple[float, float] = (1.0, 0.0),
    server: tuple[float, float] = (1.0, 0.0),
    labels: float = 0.0,
    share: float = SHARE,
    seed: int = 0,
) -> None:
    """Write the pairs of so many inputs: each head is right with the chance that its true scale and shift give.

    The device decides by the bundle's scales and shifts. Of what it keeps it audits a ``share``, and it keeps ten times
    the share of what it asks about. Every pair gets its label with the chance ``labels``.
    """
    rng = np.random.default_rng(seed)
    (stated,) = np.array(manifest.rejector.platt)
    names = [answerer.name for answerer in manifest.answerers]
    local = sum(not answerer.remote for answerer in manifest.answerers)
    heads = rng.normal([1.5] * local + [2.5] * (len(names) - local), 2.0, (inputs, len(names)))
    classes, costs = len(manifest.classes), Costs(c_e=0.1)
    truth = rng.integers(classes, size=inputs)

    def answers(column: int, true: tuple[float, float]) -> Any:
        right = rng.random(inputs) < sigmoid(true[0] * heads[:, column] + true[1])
        return np.where(right, truth, (truth + rng.integers(1, classes, inputs)) % classes)

    own = [answers(j, client) for j in range(local)]
    remote = [answers(j, server) for j in range(local, len(names))]
    p = sigmoid(heads * stated[:, 0] + stated[:, 1])
    best, ask = p[:, :local].argmax(axis=1), p[:, local:].argmax(axis=1)
    asked = p[:, local:].max(axis=1) - p[:, :local].max(axis=1) - costs.c_e >= 0
    by = np.where(asked, ask, rng.integers(len(remote), size=inputs))
    log = AuditLog(folder)
    platt = tuple(tuple((float(a), float(b)) for a, b in pairs) for pairs in manifest.rejector.platt)
    log.begin(
        AuditHeader(
            bundle=manifest.version,
            name=manifest.name,
            classes=tuple(manifest.classes),
            answerers=tuple(names),
            local=local,
            platt=platt,
        )
    )
    chance = np.where(asked, min(1.0, 10 * share), share)
    for i in np.flatnonzero(rng.random(inputs) < chance).tolist():
        pair = AuditPair(
            kind="asked" if asked[i] else "audit",
            id=f"{seed}-{i}",
            time=1e9 + i,
            probability=float(chance[i] if asked[i] else chance[i] / len(remote)),
            reason="worth_asking" if asked[i] else "not_worth_asking",
            which=0,
            heads=tuple(heads[i].tolist()),
            client=int(own[0][i]),
            student=int(own[1][i]) if local > 1 else None,
            local=int(best[i]),
            by=names[local + by[i]],
            server=int(remote[by[i]][i]),
            costs=costs.as_dict(),
        )
        log.write([pair])
        if rng.random() < labels:
            log.feedback(pair.id, int(truth[i]))
    log.close()
