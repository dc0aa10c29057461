"""A fitted system: everything that training and calibration found out, in one frozen object with public fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h import metrics
from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.columns import Columns, EncodedTable
from l2h.costs import Costs
from l2h.data.dataset import Array, Labels, check_arrays, check_inputs
from l2h.data.objects import take_samples
from l2h.decision import CLIENT, STUDENT, Answerer, AnyCosts, Judgement, RejectorSpec, select_rejector
from l2h.errors import DataError, NotFittedError, about
from l2h.labels import LabelCodec
from l2h.methods.learned import Learned
from l2h.models import client_view_size, multiply_adds
from l2h.models.student import student_logit
from l2h.money import Money, plain_costs
from l2h.settings import Settings
from l2h.table import Table
from l2h.training import Context, HeldOut, RejectorBatch, StudentAnswers
from l2h.training.counting import classifier_multiply_adds
from l2h.training.job import server_title
from l2h.training.recipes import rejector_scores, server_log_probabilities

#: Prices in use where neither the caller nor the training names any.
DEFAULT_COSTS = Costs(c_e=0.1, c_1=1.0)
#: Rows of a training table that are kept to compare exported files with their originals.
EXAMPLES = 32


@dataclass(frozen=True)
class Calibration:
    """What calibration measured on held-out samples."""

    held_out: HeldOut  # outcomes on those samples
    #: (R, 1 + S, 2), scale and shift of each rejector's logits; (1, 0) where there is nothing to calibrate.
    platt: npt.NDArray[np.float64]
    #: (R, 4 + S), the weights of :func:`l2h.models.student.student_logit`; None for rejectors without a student, or for
    #: one price.
    student: npt.NDArray[np.float64] | None = None
    #: Whether nothing was trained on those samples; False where they stopped the training of the rejectors.
    fresh: bool = True


@dataclass(frozen=True)
class FittedServer:
    """One server of a fitted system; both None where it was trained elsewhere and is not here."""

    name: str
    network: nn.Module | None = None  # trained
    classifier: Classifier | None = None  # of any other kind: an estimator that was trained, or taken as it is


@dataclass(frozen=True)
class FittedSystem:
    """A client, servers and rejectors that belong together. Saving, exporting and reporting read its fields."""

    client: Classifier  # as given, never changed
    servers: tuple[FittedServer, ...]  # S of them, in the order of the rejectors' heads
    rejectors: RejectorBatch  # one per spec
    specs: tuple[RejectorSpec, ...]  # what each rejector was trained for
    method: Learned  # how they were trained, and what their outputs mean
    rejector: str  # attached, separate, or given for a module of the user's
    rejector_options: Mapping[str, Any]  # of a named rejector
    settings: Settings  # of the training
    device: torch.device  # where the networks live
    input_shape: tuple[int, ...]  # of one input
    input_dtype: str  # name of its numpy type
    labels: LabelCodec  # the K classes: their names, and the user's label of each
    embedding_size: int  # how many features of the client the rejectors read
    dataset: str  # a name for reports
    image_size: int | None = None  # what images were brought to; None where they were taken as they are
    columns: Columns | None = None  # of the training table; None where the inputs are arrays
    #: A few of its rows, on which exported files are compared with their originals; they are not saved.
    examples: EncodedTable | None = None
    #: What the rejectors were sized to (:class:`l2h.training.job.RejectorSize`); None where to none.
    budget: Mapping[str, Any] | None = None
    #: Which tensor inside the client they read (:class:`l2h.training.job.Job`), where one was chosen.
    client_features: Mapping[str, Any] | None = None
    second_opinion: bool = False  # whether the rejector's student may answer
    calibration: Calibration | None = None  # what followed from the calibration samples; None before
    history: list[dict[str, Any]] = field(default_factory=list)  # one row per epoch of the training

    def __repr__(self) -> str:
        servers = ", ".join(server.name for server in self.servers)
        made = f"client={self.client!r}, servers: {servers}, rejector={self.rejector!r}, method={self.method.name!r}"
        return f"FittedSystem({self.dataset}: {made}, {self.state})"

    @property
    def state(self) -> str:
        """What it was fitted to, and how many samples it was calibrated on, in a line."""
        held = self.calibration and len(self.calibration.held_out.client_correct)
        calibrated = "not calibrated" if held is None else f"calibrated on {held} samples"
        return f"inputs {self.input_shape} {self.input_dtype}, {self.num_classes} classes, {calibrated}"

    @property
    def num_classes(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels.names

    @property
    def answerers(self) -> tuple[Answerer, ...]:
        """Who can answer, in the order of a judgement's columns: the client, its student where it may, the servers."""
        local = (CLIENT, STUDENT) if self.second_opinion else (CLIENT,)
        return (*local, *(Answerer(server.name, remote=True) for server in self.servers))

    @property
    def context(self) -> Context:
        return Context(self.settings, self.device)

    def calibrated(self, held_out: HeldOut, fresh: bool = True) -> FittedSystem:
        """Return the system with the calibration that follows from these outcomes; ``fresh`` as in Calibration."""
        platt = np.array(
            [self.method.fit_platt(spec, held_out.scores[r], held_out.right) for r, spec in enumerate(self.specs)]
        )
        student = None
        if held_out.student_correct is not None and all(spec.costs is None for spec in self.specs):
            assert held_out.student_features is not None
            logits = held_out.scores * platt[:, None, :, 0] + platt[:, None, :, 1]
            inputs = np.concatenate([held_out.student_features, logits], axis=-1)
            student = np.array(
                [metrics.fit_logistic(*own) for own in zip(inputs, held_out.student_correct, strict=True)]
            )
        return replace(self, calibration=Calibration(held_out, platt, student, fresh))

    def measure(self, X: Array, y: Labels) -> HeldOut:
        """Return what client, servers and rejectors make of samples."""
        answers = self.client.answers(X, self.num_classes)
        scores, student = self.opinions(X, answers)
        right = [self.server_log_probability(X, k).argmax(axis=1) == y for k in range(len(self.servers))]
        return HeldOut(
            scores=scores,
            client_confidence=answers.confidence,
            client_correct=answers.label == y,
            server_correct=right[0] if len(right) == 1 else np.column_stack(right),
            student_features=None if student is None else student.features,
            student_correct=None if student is None else student.label == y,
        )

    def select(self, costs: AnyCosts | Money | None, which: int | None = None) -> tuple[int, AnyCosts]:
        """Return the number of the one rejector that answers for these prices, and the prices in use."""
        return select_rejector(self.specs, plain_costs(costs), DEFAULT_COSTS, which)

    def scores(self, X: Array, answers: ClassifierAnswers) -> npt.NDArray[np.floating]:
        """Return (R, n, 1 + S), the final scores of every rejector for the client and the servers."""
        raw = torch.from_numpy(rejector_scores(self.rejectors, X, answers, self.context))
        return self.method.final(raw, torch.from_numpy(answers.log_probability)).numpy()

    def opinions(self, X: Array, answers: ClassifierAnswers) -> tuple[npt.NDArray[np.floating], StudentAnswers | None]:
        """Return :meth:`scores`, and what the students of the rejectors answer; None where they have none."""
        if not self.rejectors.has_student:
            return self.scores(X, answers), None
        outputs = torch.from_numpy(rejector_scores(self.rejectors, X, answers, self.context, student=True))
        heads, taught = outputs[..., : self.rejectors.heads], outputs[..., self.rejectors.heads :]
        scores = self.method.final(heads, torch.from_numpy(answers.log_probability)).numpy()
        return scores, StudentAnswers.of(taught, answers.label)

    def judge(self, X: Array, answers: ClassifierAnswers, which: int) -> Judgement:
        """Return what a rejector makes of inputs, given the client's answers."""
        if not self.second_opinion:
            return self.judgement(self.scores(X, answers)[which], which)
        scores, student = self.opinions(X, answers)
        return self.judgement(scores[which], which, None if student is None else student.features[which])

    def judgement(
        self, scores: npt.NDArray[np.floating], which: int, student_features: npt.NDArray[np.floating] | None = None
    ) -> Judgement:
        """Return the judgement of a rejector's final scores (n, 1 + S) and of its student's features (n, 2).

        The student has a column only where it may answer, and its features are not read where not.
        """
        if self.specs[which].costs is not None:
            return Judgement(scores, None, self.answerers)
        platt = None if self.calibration is None else self.calibration.platt[which]
        if self.second_opinion:
            if self.calibration is None or self.calibration.student is None or student_features is None:
                raise NotFittedError("a second opinion needs calibrate(X_cal, y_cal): the student is not calibrated")
            assert platt is not None
            logits = scores * platt[:, 0] + platt[:, 1]
            student = student_logit(student_features, logits, self.calibration.student[which])
            scores, platt = np.insert(logits, 1, student, axis=1), None
        return Judgement.from_heads(scores, platt, self.answerers)

    def held_out_judgement(self, which: int) -> Judgement:
        """Return what a rejector makes of the samples of the last calibration, which there must have been."""
        if self.calibration is None:
            raise NotFittedError("a bound on asking is met on calibration samples: call calibrate(X_cal, y_cal) first")
        held = self.calibration.held_out
        features = None if held.student_features is None else held.student_features[which]
        return self.judgement(held.scores[which], which, features)

    def server_log_probability(self, X: Array, number: int = 0) -> npt.NDArray[np.float32]:
        """Return (n, K), the log-probabilities of the server with this number."""
        server = self.servers[number]
        if server.classifier is not None:
            with about(server_title(server.name)):
                return server.classifier.answers(X, self.num_classes).log_probability
        assert server.network is not None
        return server_log_probabilities(server.network, X, self.context)

    @cached_property
    def compute(self) -> dict[str, Any]:
        """What an input costs: :meth:`multiply_adds`, the budget, and which features of the client were chosen."""
        chosen = self.client_features
        features = {} if chosen is None else {"client_features": {**chosen, "size": self.embedding_size}}
        return {"multiply_adds": self.multiply_adds(), "budget": self.budget, **features}

    def multiply_adds(self) -> dict[str, int | None]:
        """Return multiply-adds of one input through ``client``, ``rejector`` and each server by its name.

        None for a client or a server whose work cannot be counted (:mod:`l2h.training.counting`).
        """
        x = torch.zeros(1, *self.input_shape, dtype=getattr(torch, self.input_dtype), device=self.device)
        view = torch.zeros(1, client_view_size(self.num_classes, self.embedding_size), device=self.device)
        module = self.rejectors.module(0)
        inputs = (x, view) if getattr(module, "uses_client", False) else (x,)

        def count(classifier: Classifier | None) -> int | None:
            if classifier is None:
                return None
            return classifier_multiply_adds(classifier, self.input_shape, self.input_dtype)

        return {
            "client": count(self.client),
            "rejector": multiply_adds(module, *inputs),
            **{
                server.name: count(server.classifier) if server.network is None else multiply_adds(server.network, x)
                for server in self.servers
            },
        }

    def check_inputs(self, X: Any) -> Any:
        """Return inputs as an array; refuse a shape or type other than the system was fitted to, and bad values.

        Inputs of a system that was fitted to a table are returned as an :class:`l2h.columns.EncodedTable`.
        """
        if self.columns is not None:
            return self.columns.encode(X)
        if isinstance(X, Table):
            raise DataError(f"the inputs are a table, the system was fitted to arrays of shape {self.input_shape}")
        X = check_inputs(X)
        if tuple(X.shape[1:]) != self.input_shape:
            raise DataError(f"inputs have shape {tuple(X.shape[1:])}, the system was fitted to {self.input_shape}")
        if str(X.dtype) != self.input_dtype:
            raise DataError(
                f"inputs are {X.dtype}, the system was fitted to {self.input_dtype}: their scales would differ"
            )
        return X

    def check(self, X: Any, y: Any) -> tuple[Any, Labels]:
        """Return inputs and class numbers as arrays; see :meth:`check_inputs`."""
        X, y = take_samples(X, y)
        return check_arrays(self.check_inputs(X), y, self.labels, allow_one_class=True)
