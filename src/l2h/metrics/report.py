"""The measurements of one system on one test set at one price, as one plain object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray
from l2h.labels import ClassNames, LabelCodec
from l2h.metrics.calibration import Reliability, expected_calibration_error, reliability_curve
from l2h.metrics.frontier import (
    Frontier,
    RoutingMeasures,
    frontier,
    frontier_gain,
    label_free_score,
    routing_measures,
)
from l2h.metrics.risk import Contrastive, Risks, contrastive, reject_rate_per_class, risks

SCHEMA = 1


@dataclass(frozen=True, repr=False)
class OutcomeReport:
    """The measurements of decisions where only the outcomes are known. :meth:`as_dict` is what ``metrics.json`` holds.

    Attributes:
        dataset: name of the data set.
        seed: seed of the training.
        costs: the prices.
        accuracy: of ``client``, ``server`` and ``system``.
        reject_rate: share of samples for which the server is asked.
        risk: of the system and its baselines.
        contrastive: both accuracies on each side of the decision.
        frontiers: curves by name: ``system``, ``oracle``, ``random``; with labels also ``confidence``, ``label_free``.
        gains: frontier gain by the same names; ``None`` where there is nothing to gain.
        routing: APGR and CPT of the system's frontier; ``None`` where the server is not better than the client.
        heads: reliability of the priced heads, ``client`` and ``server``; empty for a rejector without them.
        ece: expected calibration errors of the heads.
        remote: bool (n,), the decisions, true where the server is asked.
        confidence_remote: bool (n,), the decisions of the confidence rule; ``None`` without a held-out threshold.
        client_correct: bool (n,), where the client is right.
        server_correct: bool (n,), where the server is right.
        score: (n,), the ranking behind the system's frontier; larger means more to gain from asking.
    """

    dataset: str
    seed: int | None
    costs: Costs
    accuracy: dict[str, float]
    reject_rate: float
    risk: Risks
    contrastive: Contrastive
    frontiers: dict[str, Frontier]
    gains: dict[str, float | None]
    routing: RoutingMeasures | None
    heads: dict[str, Reliability]
    ece: dict[str, float]
    remote: BoolArray
    confidence_remote: BoolArray | None
    client_correct: BoolArray
    server_correct: BoolArray
    score: FloatArray

    def __len__(self) -> int:
        return len(self.remote)

    def __repr__(self) -> str:
        risk = self.risk
        confidence = "n/a" if risk.confidence is None else f"{risk.confidence:.4f}"
        return (
            f"{type(self).__name__}({self.dataset}, {len(self)} samples, {self.costs}: risk {risk.system:.4f}, sent "
            f"{100 * self.reject_rate:.1f}%; never ask {risk.all_local:.4f}, always {risk.all_remote:.4f}, "
            f"random {risk.random:.4f}, confidence {confidence}, oracle {risk.oracle:.4f})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: shares and rates are fractions, a missing value is ``None``."""
        return {
            "schema": SCHEMA,
            "dataset": self.dataset,
            "seed": self.seed,
            "samples": len(self),
            "costs": self.costs.as_dict(),
            "accuracy": dict(self.accuracy),
            "reject_rate": self.reject_rate,
            "risk": self.risk.as_dict(),
            "frontier": {
                "area": self.frontiers["system"].area,
                "gain": self.gains["system"],
                "confidence_gain": self.gains.get("confidence"),
                "label_free_gain": self.gains.get("label_free"),
            },
            "routing": None if self.routing is None else self.routing.as_dict(),
            "contrastive": self.contrastive.as_dict(),
            "heads": {
                name: {"ece": self.ece[name], "reliability": curve.as_dict()} for name, curve in self.heads.items()
            },
        }


@dataclass(frozen=True, repr=False)
class Report(OutcomeReport):
    """The result of ``HelpSystem.evaluate``: an :class:`OutcomeReport` of classifiers, whose labels are known too.

    Attributes:
        per_class: (K,), reject rate of each class; NaN for a class that does not occur.
        labels: the classes: their names, and the label of each.
        client_label: (n,), the client's answers, as labels.
        server_label: (n,), the server's answers, as labels.
        y: (n,), the true labels.
        student_correct: bool (n,), where the rejector's student is right; ``None`` for a rejector without one.
        compute: what an input costs: ``multiply_adds`` of ``client``, ``rejector`` and ``server``, ``None`` where they
            cannot be counted, and the ``budget`` that the rejector was sized to, if any.
    """

    per_class: FloatArray
    labels: LabelCodec
    client_label: npt.NDArray[Any]
    server_label: npt.NDArray[Any]
    y: npt.NDArray[Any]
    student_correct: BoolArray | None = None
    compute: Mapping[str, Any] | None = None

    @property
    def student_risk(self) -> float | None:
        """The risk of the rejector's student in the client's place, asking nobody; ``None`` without a student."""
        if self.student_correct is None:
            return None
        costs = self.costs
        return float(np.where(self.student_correct, costs.c_cc, costs.c_ce).mean())

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names."""
        return self.labels.names

    def as_dict(self) -> dict[str, Any]:
        per_class = {
            name: None if np.isnan(rate) else float(rate)
            for name, rate in zip(self.class_names, self.per_class, strict=True)
        }
        values = super().as_dict() | {"reject_rate_per_class": per_class}
        del values["routing"]  # the keys are those of version 0.1
        if self.student_correct is not None:
            values["student"] = {"accuracy": float(self.student_correct.mean()), "risk": self.student_risk}
        if self.compute is not None:
            values["compute"] = dict(self.compute)
        return values


def evaluate(
    *,
    y: npt.NDArray[np.int64],
    client_label: npt.NDArray[np.int64],
    client_confidence: FloatArray,
    server_probability: FloatArray,
    remote: BoolArray,
    score: FloatArray,
    costs: Costs,
    confidence_remote: BoolArray | None,
    head_probability: dict[str, FloatArray],
    class_names: ClassNames,
    dataset: str = "unnamed",
    seed: int | None = None,
    student_correct: BoolArray | None = None,
    compute: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report on decisions that were made; :class:`Report` describes the arguments that are its fields.

    Args:
        y, client_label: (n,), as class numbers.
        client_confidence: (n,), the client's largest probability.
        server_probability: (n, K), the server's softmax.
        head_probability: probabilities of the priced heads, ``{"client": q_m, "server": q_e}``, or empty.
    """
    server_label, labels = server_probability.argmax(axis=1), LabelCodec.find(y, class_names)
    measured = _measure(
        client_correct=client_label == y,
        server_correct=server_label == y,
        scores={
            "system": score,
            "confidence": -client_confidence,
            "label_free": label_free_score(server_probability, client_label),
        },
        remote=remote,
        costs=costs,
        confidence_remote=confidence_remote,
        head_probability=head_probability,
    )
    return Report(
        dataset=dataset,
        seed=seed,
        per_class=reject_rate_per_class(remote, y, len(labels)),
        labels=labels,
        client_label=labels.decode(client_label),
        server_label=labels.decode(server_label),
        y=labels.decode(y),
        student_correct=student_correct,
        compute=compute,
        **measured,
    )


def evaluate_outcomes(
    *,
    client_correct: BoolArray,
    server_correct: BoolArray,
    remote: BoolArray,
    score: FloatArray,
    costs: Costs,
    head_probability: dict[str, FloatArray],
    dataset: str = "unnamed",
    seed: int | None = None,
) -> OutcomeReport:
    """Return the report on decisions of which only the outcomes are known; the arguments are those of its fields."""
    measured = _measure(
        client_correct=client_correct,
        server_correct=server_correct,
        scores={"system": score},
        remote=remote,
        costs=costs,
        confidence_remote=None,
        head_probability=head_probability,
    )
    return OutcomeReport(dataset=dataset, seed=seed, **measured)


def _measure(
    *,
    client_correct: BoolArray,
    server_correct: BoolArray,
    scores: dict[str, FloatArray],
    remote: BoolArray,
    costs: Costs,
    confidence_remote: BoolArray | None,
    head_probability: dict[str, FloatArray],
) -> dict[str, Any]:
    """Return the fields of a report that follow from the outcomes; ``scores`` rank the samples for a frontier each."""
    table = contrastive(client_correct, server_correct, remote)
    scores = scores | {
        "oracle": server_correct.astype(float) - client_correct.astype(float),
        "random": np.zeros(len(remote)),
    }
    frontiers = {name: frontier(s, client_correct, server_correct) for name, s in scores.items()}
    truth = {"client": client_correct, "server": server_correct}
    return {
        "costs": costs,
        "accuracy": {
            "client": float(client_correct.mean()),
            "server": float(server_correct.mean()),
            "system": table.joint,
        },
        "reject_rate": float(np.mean(remote)),
        "risk": risks(client_correct, server_correct, remote, costs, confidence_remote),
        "contrastive": table,
        "frontiers": frontiers,
        "gains": {name: frontier_gain(f.area, client_correct, server_correct) for name, f in frontiers.items()},
        "routing": routing_measures(frontiers["system"]),
        "heads": {name: reliability_curve(p, truth[name]) for name, p in head_probability.items()},
        "ece": {name: expected_calibration_error(p, truth[name]) for name, p in head_probability.items()},
        "remote": remote,
        "confidence_remote": confidence_remote,
        "client_correct": client_correct,
        "server_correct": server_correct,
        "score": scores["system"],
    }
