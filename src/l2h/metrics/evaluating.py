"""Decisions and who was right about them, made into a report."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import CLIENT, SERVER, STUDENT, Allowed, AnyCosts
from l2h.errors import DataError
from l2h.labels import ClassNames, LabelCodec
from l2h.metrics.calibration import expected_calibration_error, reliability_curve
from l2h.metrics.choice import Answered
from l2h.metrics.decider import PriceDecider
from l2h.metrics.frontier import frontier, label_free_score
from l2h.metrics.prices import at_price
from l2h.metrics.report import OutcomeReport, Report
from l2h.metrics.risk import reject_rate_per_class
from l2h.money import Money


def evaluate(
    *,
    y: npt.NDArray[np.int64],
    client_label: npt.NDArray[np.int64],
    client_confidence: FloatArray,
    server_probability: FloatArray | Mapping[str, FloatArray],
    score: FloatArray,
    costs: AnyCosts,
    head_probability: dict[str, FloatArray],
    class_names: ClassNames,
    remote: BoolArray | None = None,
    confidence_remote: BoolArray | None = None,
    answered: Answered | None = None,
    dataset: str = "unnamed",
    seed: int | None = None,
    student_label: npt.NDArray[np.int64] | None = None,
    compute: Mapping[str, Any] | None = None,
    decider: PriceDecider | None = None,
    money: Money | None = None,
) -> Report:
    """Return the report on decisions that were made; :class:`Report` describes the arguments that are its fields.

    Args:
        y, client_label: (n,), as class numbers.
        client_confidence: (n,), the client's largest probability.
        server_probability: (n, K), the server's softmax; of several servers by their names.
        head_probability: stated probabilities by the answerer's name, ``{"client": q_m, "server": q_e}``, or empty.
        remote: bool (n,), the decisions between a client and a server.
        confidence_remote: bool (n,), those of the confidence rule.
        answered: instead of these two, who answers where there are more answerers.
        student_label: (n,), the answers of the rejector's student as class numbers.
    """
    if not isinstance(server_probability, Mapping):
        server_probability = {"server": server_probability}
    if answered is None:
        if remote is None:
            raise DataError("give remote, the decisions between client and server, or answered for more answerers")
        answered = Answered.of_two(remote, confidence_remote)
    numbers = {CLIENT.name: client_label} | ({} if student_label is None else {STUDENT.name: student_label})
    numbers |= {name: probability.argmax(axis=1) for name, probability in server_probability.items()}
    right = {name: given == y for name, given in numbers.items()}
    server = max(server_probability, key=lambda name: int(right[name].sum()))
    labels = LabelCodec.find(y, class_names)
    measured = _measure(
        right,
        answered,
        scores={
            "system": score,
            "confidence": -client_confidence,
            "label_free": label_free_score(server_probability[server], client_label),
        },
        costs=costs,
        head_probability=head_probability,
    )
    return Report(
        dataset=dataset,
        seed=seed,
        per_class=reject_rate_per_class(measured["choice"].remote, y, len(labels)),
        labels=labels,
        given={name: labels.decode(given) for name, given in numbers.items()},
        y=labels.decode(y),
        student_correct=right.get(STUDENT.name),
        compute=compute,
        decider=decider,
        money=money,
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
    allowed: Allowed | None = None,
    decider: PriceDecider | None = None,
    money: Money | None = None,
) -> OutcomeReport:
    """Return the report on decisions of which only the outcomes are known; the arguments are those of its fields."""
    right = {CLIENT.name: client_correct, SERVER.name: server_correct}
    measured = _measure(right, Answered.of_two(remote, allowed=allowed), {"system": score}, costs, head_probability)
    return OutcomeReport(dataset=dataset, seed=seed, decider=decider, money=money, **measured)


def _measure(
    right: Mapping[str, BoolArray],
    answered: Answered,
    scores: dict[str, FloatArray],
    costs: AnyCosts,
    head_probability: dict[str, FloatArray],
) -> dict[str, Any]:
    """Return the fields of a report that follow from who is right; ``scores`` rank the samples for a frontier each."""
    client = right[CLIENT.name]
    server = max((right[one.name] for one in answered.answerers if one.remote), key=lambda where: int(where.sum()))
    frontiers = {name: frontier(score, client, server) for name, score in scores.items() if name != "system"}
    local, remote = (
        np.any([right[one.name] for one in answered.answerers if one.remote == there], axis=0)
        for there in (False, True)
    )
    frontiers["oracle"] = frontier(remote.astype(float) - local.astype(float), local, remote)
    frontiers["random"] = frontier(np.zeros(len(client)), client, server)
    return {
        "heads": {name: reliability_curve(p, right[name]) for name, p in head_probability.items()},
        "ece": {name: expected_calibration_error(p, right[name]) for name, p in head_probability.items()},
        **at_price(right, answered, scores["system"], costs, frontiers),
    }
