"""A finished pass of training, kept as a file: what client, server and rejectors made of the samples.

Then the figures of one cell of it, seed by seed, and cells of tables from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import limits, metrics
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import Judgement, RejectorSpec
from l2h.errors import DataError
from l2h.experiments.paper.grid import FREE, STYLES
from l2h.experiments.runs import read_arrays, write_arrays

Labels = npt.NDArray[np.int64]
Cell = dict[str, Any]
#: Why a cell has no number.
DIVERGED = "the rejector diverged in every seed, since its loss has no lower bound"
EMPTY = "no input was decided this way"
UNPRINTED = "the paper prints no number"


@dataclass(frozen=True)
class PassOutcomes:
    """What client, server and R rejectors make of n samples."""

    y: Labels  # int (n,)
    client_label: Labels  # int (n,)
    server_label: Labels  # int (n,)
    scores: npt.NDArray[np.float32]  # float32 (R, n, 2); of priced heads, the calibrated ``q_m`` and ``q_e``

    @property
    def client_correct(self) -> BoolArray:
        return np.asarray(self.client_label == self.y)

    @property
    def server_correct(self) -> BoolArray:
        return np.asarray(self.server_label == self.y)

    def only(self, chosen: slice) -> PassOutcomes:
        """Return the same samples with the scores of some rejectors."""
        return replace(self, scores=self.scores[chosen])

    def joint_correct(self, remote: BoolArray) -> BoolArray:
        return np.where(remote, self.server_correct, self.client_correct)


@dataclass(frozen=True)
class Pass:
    """One finished pass."""

    specs: tuple[RejectorSpec, ...]  # of the R rejectors
    test: PassOutcomes  # on the test set
    calibration: PassOutcomes  # on samples that nothing was trained on
    losses: FloatArray  # (epochs, R), each rejector's mean training loss; empty for priced heads
    #: Seconds and sizes; by the paper's recipe also ``server_right``: for each rejector, on which share of the training
    #: samples L2 took the server to be right in the last epoch.
    facts: dict[str, Any]

    def judgement(self, which: int, on: str = "test") -> Judgement:
        side = self.test if on == "test" else self.calibration
        scores = side.scores[which]
        if self.specs[which].loss != "priced":
            return Judgement(scores)
        return Judgement(scores, scores.astype(np.float64))

    def find(self, loss: str, costs: Costs, sync: int | str = 1) -> int:
        """The rejector of a cell; the priced one answers for all."""
        for i, spec in enumerate(self.specs):
            if spec.loss == "priced" or (spec.loss == loss and spec.costs == costs and str(spec.sync) == str(sync)):
                return i
        raise DataError(f"this pass has no rejector for {loss}, {costs}, S = {sync}")

    def joined(self, other: Pass) -> Pass:
        """The rejectors of both, of two passes with the same server."""

        def both(one: PassOutcomes, two: PassOutcomes) -> PassOutcomes:
            return replace(one, scores=np.concatenate([one.scores, two.scores]))

        return Pass(
            self.specs + other.specs,
            both(self.test, other.test),
            both(self.calibration, other.calibration),
            np.concatenate([self.losses, other.losses], axis=1),
            self.facts | {key: self.facts[key] + other.facts[key] for key in ("server_right",) if key in self.facts},
        )

    def save(self, path: Path, key: dict[str, Any]) -> None:
        """As an ``.npz`` without pickles."""
        meta = {"key": key, "specs": [spec.as_dict() for spec in self.specs], "facts": self.facts}
        arrays = {
            f"{name}_{field}": getattr(side, field)
            for name, side in (("test", self.test), ("calibration", self.calibration))
            for field in PassOutcomes.__dataclass_fields__
        }
        write_arrays(path, meta, {"losses": self.losses, **arrays})

    @classmethod
    def load(cls, path: Path, key: dict[str, Any]) -> Pass | None:
        """Return what :meth:`save` kept; None where there is nothing, or of other settings."""
        if not path.exists():
            return None
        with read_arrays(path, "it is made again") as (meta, arrays):
            if meta["key"] != json.loads(json.dumps(key)):
                return None
            sides = {
                name: PassOutcomes(*(arrays[f"{name}_{field}"] for field in PassOutcomes.__dataclass_fields__))
                for name in ("test", "calibration")
            }
            specs = tuple(RejectorSpec.from_dict(spec) for spec in meta["specs"])
            return cls(specs, **sides, losses=arrays["losses"], facts=meta["facts"])


def decisions(one: Pass, which: int, costs: Costs) -> BoolArray | None:
    """What a rejector sends of the test set; None where it has diverged."""
    judgement = one.judgement(which)
    if not np.isfinite(judgement.scores).all():
        return None
    return judgement.remote(costs)


def sent_under(one: Pass, which: int, bound: float, rng: np.random.Generator) -> BoolArray:
    """What goes where at most a share may be sent and asking is free; the threshold is calibrated on other samples."""
    threshold = limits.threshold_for(one.judgement(which, "calibration").saving(FREE), bound)
    return threshold.apply(one.judgement(which).saving(FREE), rng)


def figures(side: PassOutcomes, remote: BoolArray, costs: Costs) -> dict[str, float]:
    """Risk beside its trivial baselines, reject rate, joint accuracy."""
    found = metrics.risks(side.client_correct, side.server_correct, remote, costs)
    return {
        "risk": found.system,
        "all_local": found.all_local,
        "all_remote": found.all_remote,
        "random": found.random,
        "oracle": found.oracle,
        "rate": float(remote.mean()),
        "accuracy": float(side.joint_correct(remote).mean()),
    }


def over_seeds(passes: Sequence[Pass], loss: str, costs: Costs, sync: int | str = 1) -> list[dict[str, float]]:
    """The figures of a cell for every seed whose rejector is finite."""
    out = []
    for one in passes:
        remote = decisions(one, one.find(loss, costs, sync), costs)
        if remote is not None:
            out.append(figures(one.test, remote, costs))
    return out


def alone(passes: Sequence[Pass], costs: Costs) -> list[dict[str, float]]:
    """What needs no rejector, for every seed: the risk of never and of always asking, and the oracle's."""
    return [figures(one.test, np.zeros(len(one.test.y), dtype=bool), costs) for one in passes]


def cell(values: Sequence[float | None], *, percent: bool = False, why: str = DIVERGED) -> Cell:
    """Mean and standard error over seeds; without a number, and with the reason, where no seed has a value."""
    known = [float(v) for v in values if v is not None]
    if not known:
        return {"mean": None, "sem": None, "why": why}
    found = metrics.spread(known)
    return {"mean": found.mean, "sem": found.sem, "n": found.n} | ({"percent": True} if percent else {})


def column(rows: Sequence[dict[str, float]], name: str, *, percent: bool = False) -> Cell:
    """One figure of a cell over the seeds."""
    return cell([row[name] for row in rows], percent=percent)


def curve(values: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Mean and standard error at each point, over seeds: a list a seed."""
    points = [cell(at) for at in zip(*values, strict=True)]
    return {key: [point[key] for point in points] for key in ("mean", "sem")}


def price_curve(
    label: str, name: str, c_1: float, prices: Sequence[float], passes: Sequence[Pass], loss: str
) -> dict[str, Any]:
    """Rate, accuracy and risk of a recipe against c_e, as the plots take them."""

    def of(one: Pass, c_e: float, figure: str) -> float | None:
        costs = Costs(c_e=c_e, c_1=c_1)
        remote = decisions(one, one.find(loss, costs), costs)
        return None if remote is None else figures(one.test, remote, costs)[figure]

    measured = {
        figure: curve([[of(one, e, figure) for e in prices] for one in passes])
        for figure in ("rate", "accuracy", "risk")
    }
    return {"label": label, "dataset": name, "c_1": c_1, "c_e": list(prices), "style": STYLES[label], **measured}


def trivial_curves(passes: Sequence[Pass], c_1: float, prices: Sequence[float]) -> dict[str, list[float]]:
    """The mean risk of never and of always asking against c_e, and the c_e."""
    rows = [alone(passes, Costs(c_e=e, c_1=c_1)) for e in prices]
    kinds = ("all_local", "all_remote")
    return {kind: [float(np.mean([row[kind] for row in at])) for at in rows] for kind in kinds} | {"c_e": list(prices)}


def contrast_cells(
    passes: Sequence[Pass], loss: str, costs: Costs, side: str, names: Sequence[str], sync: int | str = 1
) -> list[Cell]:
    """Return figures of one side of the contrastive table, ``local`` or ``remote``, over the seeds."""
    found = [_contrast(one, one.find(loss, costs, sync), costs, side) for one in passes]
    why = EMPTY if any(found) else DIVERGED
    return [cell([values.get(name) for values in found], percent=True, why=why) for name in names]


def _contrast(one: Pass, which: int, costs: Costs, name: str) -> dict[str, float | None]:
    remote = decisions(one, which, costs)
    if remote is None:
        return {}
    table = metrics.contrastive(one.test.client_correct, one.test.server_correct, remote)
    side = table.local if name == "local" else table.remote
    difference = None if side.client is None or side.server is None else side.server - side.client
    values = {"ratio": side.ratio, "m": side.client, "e": side.server}
    return values | {"difference": difference, "joint": table.joint}
