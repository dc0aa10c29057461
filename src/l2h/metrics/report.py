"""The measurements of one system on one test set at one price, as one plain object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

import l2h  # for l2h.report, which is above this package: only what shows or saves a report needs it
from l2h.costs import BoolArray, Costs, FloatArray, prices_text
from l2h.decision import CLIENT, STUDENT, Allowed, Answerer, AnyCosts
from l2h.decision.judgement import outcome_costs
from l2h.errors import DataError, MissingExtraError, SettingsError
from l2h.labels import LabelCodec
from l2h.metrics.calibration import Reliability
from l2h.metrics.choice import AnswererChoice
from l2h.metrics.decider import PriceDecider
from l2h.metrics.frontier import Frontier, RoutingMeasures
from l2h.metrics.prices import at_price, priced_row, prices_around
from l2h.metrics.risk import Contrastive, Risks, losses_of_one, reject_rate_per_class
from l2h.metrics.savings import money_values
from l2h.money import Money, plain_costs

SCHEMA = 1


@dataclass(frozen=True, repr=False)
class OutcomeReport:
    """The measurements of decisions where only the outcomes are known. :meth:`as_dict` is what ``metrics.json`` holds.

    Attributes:
        dataset: name of the data set.
        seed: seed of the training.
        costs: the prices; of several servers, one pair for all or one per server by name.
        accuracy: of ``client``, ``server`` (of several, the most accurate one) and ``system``.
        reject_rate: share of samples for which a server is asked.
        risk: of the system and its baselines.
        contrastive: both accuracies on each side of the decision.
        frontiers: curves by name: ``system``, ``oracle``, ``random``; with labels also ``confidence``, ``label_free``.
        gains: frontier gain by the same names; ``None`` where there is nothing to gain.
        routing: APGR and CPT of the system's frontier; ``None`` where the server is not better than the client.
        heads: reliability of the stated probabilities by the answerer's name; empty for a rejector without them.
        ece: expected calibration errors of the same.
        choice: who answers each sample, and who of the answerers is right.
        confidence_choice: who answers by the confidence rule; ``None`` without a held-out threshold.
        alternatives: who would answer in the same system changed, as :class:`l2h.metrics.Answered` names them.
        score: (n,), the ranking behind the system's frontier; larger means more to gain from asking.
        allowed: how many samples may be asked about under the limit that held, which every baseline keeps to; ``None``
            without one.
        decider: decides about the samples at other prices; ``None`` where only the decisions at these are known.
        money: what the prices are in money, where they were given so.
    """

    _subject: ClassVar[str] = "Routing"  # of the page's title

    dataset: str
    seed: int | None
    costs: AnyCosts
    accuracy: dict[str, float]
    reject_rate: float
    risk: Risks
    contrastive: Contrastive
    frontiers: dict[str, Frontier]
    gains: dict[str, float | None]
    routing: RoutingMeasures | None
    heads: dict[str, Reliability]
    ece: dict[str, float]
    choice: AnswererChoice
    confidence_choice: AnswererChoice | None
    alternatives: dict[str, AnswererChoice]
    score: FloatArray
    allowed: Allowed | None
    decider: PriceDecider | None = field(default=None, kw_only=True)
    money: Money | None = field(default=None, kw_only=True)

    @property
    def answerers(self) -> tuple[Answerer, ...]:
        """Who can answer: the client, its student where it may, and the servers."""
        return self.choice.answerers

    @property
    def remote(self) -> BoolArray:
        """Bool (n,), the decisions, true where a server is asked."""
        return self.choice.remote

    @property
    def confidence_remote(self) -> BoolArray | None:
        """Bool (n,), the decisions of the confidence rule; ``None`` without a held-out threshold."""
        return None if self.confidence_choice is None else self.confidence_choice.remote

    @property
    def client_correct(self) -> BoolArray:
        """Bool (n,), where the client is right."""
        return self.choice.correct[:, 0]

    @property
    def server_correct(self) -> BoolArray:
        """Bool (n,), where the server is right; of several, the most accurate one."""
        return self.choice.correct_of(self.choice.best_server)

    def losses_of_one(self, answerer: Answerer) -> FloatArray:
        """Return (n,), what each answer costs if one answerer gives all, a server as many as a limit allows."""
        return losses_of_one(self.choice, self.costs, answerer, self.allowed)

    @property
    def no_sweep(self) -> str | None:
        """Why there is nothing to say about other prices; ``None`` where there is."""
        if self.allowed is not None:
            return f"the limit {self.allowed.limit} decides how often a server is asked; leave it out to see them"
        if not self.heads:
            return f"the rejector was trained for {prices_text(self.costs)} alone"
        return None if self.decider is not None else "only the decisions at these prices are known"

    def at(self, costs: AnyCosts | Money) -> Self:
        """Return the report on the same samples at other prices; no model is run again.

        Raises:
            DataError: the report has nothing to say about other prices: :attr:`no_sweep` says why.
        """
        if self.no_sweep is not None or self.decider is None:
            raise DataError(f"this report cannot be had at other prices: {self.no_sweep}")
        answered, paid = self.decider.answered(plain_costs(costs))
        right = {one.name: self.choice.correct_of(one) for one in self.answerers}
        measured = at_price(self._outcomes | right, answered, self.decider.score(paid), paid, self.frontiers)
        return replace(self, **measured, money=costs if isinstance(costs, Money) else None)

    @cached_property
    def sweep(self) -> list[dict[str, Any]] | None:
        """What :meth:`summary` gives at a grid of prices; ``None`` where :attr:`no_sweep` says why.

        The prices of several servers that differ are scaled together.
        """
        if self.no_sweep is not None:
            return None
        rows = []
        for costs, place in prices_around(self.costs):
            there = self.at(costs if self.money is None else self.money.at(costs))
            rows.append(there.summary() | place)
        return rows

    def summary(self) -> dict[str, Any]:
        """Return the prices, the risk of the system and of every baseline, and the verdict as plain values for JSON."""
        return priced_row(self)

    @property
    def _outcomes(self) -> dict[str, BoolArray]:
        """Who is right, by the name of each answerer that the system does not use."""
        return {}

    def __len__(self) -> int:
        return len(self.choice)

    def __repr__(self) -> str:
        risk = self.risk
        confidence = "n/a" if risk.confidence is None else f"{risk.confidence:.4f}"
        limit = "" if self.allowed is None else f", limit {self.allowed.limit}"
        return (
            f"{type(self).__name__}({self.dataset}, {len(self)} samples, {prices_text(self.costs)}{limit}: "
            f"risk {risk.system:.4f}, sent {100 * self.reject_rate:.1f}%; "
            f"never ask {risk.all_local:.4f}, always {risk.all_remote:.4f}, "
            f"random {risk.random:.4f}, confidence {confidence}, oracle {risk.oracle:.4f})"
        )

    def __str__(self) -> str:
        """Return the table of every rule with the verdict, as the commands print it."""
        return str(l2h.report.risk_table(self))

    def _repr_html_(self) -> str:
        """Return the same table as a notebook shows it."""
        return str(l2h.report.risk_table(self).as_html())

    def save(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        images: npt.NDArray[np.uint8] | None = None,
    ) -> Path:
        """Write the page with every number and picture as one file that needs no other, and return its path.

        Args:
            path: a name that ends in ``.html``. Folders that do not exist are made, and a file that is there replaced.
            title: of the page; by default it names the data set.
            history: rows of a training, ``system.fitted.history``, for its loss curves.
            images: uint8 (n, C, H, W), the test images in the report's order, for those kept and those sent.

        Raises:
            SettingsError: another name.
            MissingExtraError: the extra ``report`` is not installed; the message has the command.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise SettingsError(f"path={str(path)!r} must end in .html: a report is saved as one page")
        title = title or self._subject + ("" if self.dataset == "unnamed" else f" on {self.dataset}")
        write = l2h.report.write_page
        return Path(write(self, path.parent, title=title, history=history, images=images, file=path.name))

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per rule: this system, its baselines, the oracle, the system changed.

        The index has the names of ``metrics.json``: ``system``, ``all_local``, ``random`` and so on. The columns are
        ``rule`` (what reports call it), ``risk``, ``difference`` (its risk minus the system's), ``accuracy``, and
        ``reject_rate`` (the share of the samples that a server is asked about); with money also ``amount``, what the
        rule comes to in a period of it. A value that was not measured is NaN.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtraError("to_frame() needs the package 'pandas': pip install pandas") from error
        rows = l2h.report.risk_rows(self)
        frame = pandas.DataFrame(
            {
                "rule": [row.name for row in rows],
                "risk": [row.risk for row in rows],
                "accuracy": [row.accuracy for row in rows],
                "reject_rate": [row.rate for row in rows],
            },
            index=[row.key for row in rows],
        )
        frame.insert(2, "difference", frame["risk"] - self.risk.system)
        if self.money is not None:
            frame["amount"] = self.money.amount(1.0) * frame["risk"]
        return frame

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: shares and rates are fractions, a missing value is ``None``."""
        names = [server.name for server in self.choice.servers]
        by_server = dict.fromkeys(names, self.costs) if isinstance(self.costs, Costs) else self.costs
        same = set(by_server.values())
        values = {
            "schema": SCHEMA,
            "dataset": self.dataset,
            "seed": self.seed,
            "samples": len(self),
            "costs": next(iter(same)).as_dict() if len(same) == 1 else None,
            "accuracy": dict(self.accuracy),
            "answerers": {name: figures.as_dict() for name, figures in self.choice.figures().items()},
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
        if len(names) > 1:
            values["prices"] = {name: by_server[name].as_dict() for name in names}
            values["single_server"] = {
                name: self.alternatives[name].summary(self.costs) for name in names if name in self.alternatives
            }
        if self.allowed is not None:
            values["bound"] = self.allowed.as_dict()
        if self.money is not None:
            values["money"] = money_values(self)
        for ways in ("three_ways", "two_ways"):
            if ways in self.alternatives:
                values[ways] = self.alternatives[ways].summary(self.costs)
        return values


@dataclass(frozen=True, repr=False)
class Report(OutcomeReport):
    """The result of ``HelpSystem.evaluate``: an :class:`OutcomeReport` of classifiers, whose labels are known too.

    Attributes:
        per_class: (K,), reject rate of each class; NaN for a class that does not occur.
        labels: the classes: their names, and the label of each.
        given: (n,), the answers of every answerer by its name, as labels.
        y: (n,), the true labels.
        student_correct: bool (n,), where the rejector's student is right; ``None`` for a rejector without one.
        compute: what an input costs: ``multiply_adds`` of ``client``, ``rejector`` and ``server`` (several servers are
            named), ``None`` where they cannot be counted, and the ``budget`` that the rejector was sized to, if any;
            ``client_features`` where a tensor inside the client was chosen.
    """

    _subject = "Learning to help"

    per_class: FloatArray
    labels: LabelCodec
    given: Mapping[str, npt.NDArray[Any]]
    y: npt.NDArray[Any]
    student_correct: BoolArray | None = None
    compute: Mapping[str, Any] | None = None

    @property
    def client_label(self) -> npt.NDArray[Any]:
        """(n,), the client's answers, as labels."""
        return self.given[CLIENT.name]

    @property
    def server_label(self) -> npt.NDArray[Any]:
        """(n,), the server's answers, as labels; of several servers, those of the most accurate one."""
        return self.given[self.choice.best_server.name]

    @property
    def student_risk(self) -> float | None:
        """The risk of the rejector's student in the client's place, asking nobody; ``None`` without a student."""
        if self.student_correct is None:
            return None
        right, wrong = outcome_costs(self.answerers, self.costs)[0]  # a local answer costs the same, whoever gives it
        return float(np.where(self.student_correct, right, wrong).mean())

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names."""
        return self.labels.names

    def at(self, costs: AnyCosts | Money) -> Self:
        """Return the report on the same samples at other prices; no model is run again."""
        there = super().at(costs)
        rates = reject_rate_per_class(there.remote, self.labels.encode(self.y), len(self.labels))
        return replace(there, per_class=rates)

    @property
    def _outcomes(self) -> dict[str, BoolArray]:
        return {} if self.student_correct is None else {STUDENT.name: self.student_correct}

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
