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

from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.columns import Columns, EncodedTable
from l2h.costs import Costs
from l2h.data.dataset import Array, Labels, check_arrays, check_inputs
from l2h.data.objects import take_samples
from l2h.decision import CostsT, Judgement, RejectorSpec, select_rejector
from l2h.errors import DataError, NotFittedError
from l2h.labels import LabelCodec
from l2h.methods.learned import Learned, decided_judgement
from l2h.models import client_view_size, multiply_adds
from l2h.settings import Settings
from l2h.table import Table
from l2h.training import Context, HeldOut, RejectorBatch
from l2h.training.counting import classifier_multiply_adds
from l2h.training.recipes import rejector_scores, server_log_probabilities

#: Prices in use where neither the caller nor the training names any.
DEFAULT_COSTS = Costs(c_e=0.1, c_1=1.0)
#: Rows of a training table that are kept to compare exported files with their originals.
EXAMPLES = 32


@dataclass(frozen=True)
class Calibration:
    """What calibration measured on samples that nothing was trained on."""

    held_out: HeldOut  # outcomes on those samples
    #: (R, 2, 2), scale and shift of each rejector's two logits; (1, 0) where there is nothing to calibrate.
    platt: npt.NDArray[np.float64]


@dataclass(frozen=True)
class FittedSystem:
    """A client, a server and rejectors that belong together. Saving, exporting and reporting read its fields.

    Attributes:
        client: as given, never changed.
        server: trained; None where it is fixed, or was trained elsewhere.
        fixed_server: a server that was not trained.
        rejectors: one per spec.
        specs: what each rejector was trained for.
        method: how they were trained, and what their outputs mean.
        rejector: attached, separate, or given for a module of the user's.
        rejector_options: of a named rejector.
        settings: of the training.
        device: where the networks live.
        input_shape: of one input.
        input_dtype: name of its numpy type.
        labels: the K classes: their names, and the user's label of each.
        embedding_size: how many features of the client the rejectors read.
        dataset: a name for reports.
        image_size: what images were brought to; None where they were taken as they are.
        columns: of the training table; None where the inputs are arrays.
        examples: a few of its rows, on which exported files are compared with their originals; they are not saved.
        budget: what the rejectors were sized to (:class:`l2h.training.job.RejectorSize`); None where to none.
        calibration: what followed from the calibration samples; None before.
        history: one row per epoch of the training.
    """

    client: Classifier
    server: nn.Module | None
    fixed_server: Classifier | None
    rejectors: RejectorBatch
    specs: tuple[RejectorSpec, ...]
    method: Learned
    rejector: str
    rejector_options: Mapping[str, Any]
    settings: Settings
    device: torch.device
    input_shape: tuple[int, ...]
    input_dtype: str
    labels: LabelCodec
    embedding_size: int
    dataset: str
    image_size: int | None = None
    columns: Columns | None = None
    examples: EncodedTable | None = None
    budget: Mapping[str, Any] | None = None
    calibration: Calibration | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names."""
        return self.labels.names

    @property
    def context(self) -> Context:
        """Return what running the networks needs."""
        return Context(self.settings, self.device)

    def calibrated(self, held_out: HeldOut) -> FittedSystem:
        """Return the system with the calibration that follows from these outcomes."""
        platt = [
            self.method.fit_platt(spec, held_out.scores[r], held_out.client_correct, held_out.server_correct)
            for r, spec in enumerate(self.specs)
        ]
        return replace(self, calibration=Calibration(held_out, np.array(platt)))

    def measure(self, X: Array, y: Labels) -> HeldOut:
        """Return what client, server and rejectors make of samples."""
        answers = self.client.answers(X, self.num_classes)
        return HeldOut(
            scores=self.scores(X, answers),
            client_confidence=answers.confidence,
            client_correct=answers.label == y,
            server_correct=self.server_log_probability(X).argmax(axis=1) == y,
        )

    def select(self, costs: CostsT | None, which: int | None = None) -> tuple[int, CostsT | Costs]:
        """Return the number of the one rejector that answers for these prices, and the prices in use."""
        default: CostsT | Costs = DEFAULT_COSTS
        return select_rejector(self.specs, costs, default, which)

    def scores(self, X: Array, answers: ClassifierAnswers) -> npt.NDArray[np.floating]:
        """Return (R, n, 2), the final scores of every rejector."""
        raw = torch.from_numpy(rejector_scores(self.rejectors, X, answers, self.context))
        return self.method.final(raw, torch.from_numpy(answers.log_probability)).numpy()

    def judge(self, X: Array, answers: ClassifierAnswers, which: int) -> Judgement:
        """Return what a rejector makes of inputs, given the client's answers."""
        return self.judgement(self.scores(X, answers)[which], which)

    def judgement(self, scores: npt.NDArray[np.floating], which: int) -> Judgement:
        """Return the judgement of a rejector's final scores (n, 2)."""
        platt = None if self.calibration is None else self.calibration.platt[which]
        return decided_judgement(self.specs[which], scores, platt)

    def held_out_judgement(self, which: int) -> Judgement:
        """Return what a rejector makes of the samples of the last calibration, which there must have been."""
        if self.calibration is None:
            raise NotFittedError("a bound on asking is met on calibration samples: call calibrate(X_cal, y_cal) first")
        return self.judgement(self.calibration.held_out.scores[which], which)

    def server_log_probability(self, X: Array) -> npt.NDArray[np.float32]:
        """Return (n, K), the server's log-probabilities."""
        if self.fixed_server is not None:
            return self.fixed_server.answers(X, self.num_classes).log_probability
        assert self.server is not None
        return server_log_probabilities(self.server, X, self.context)

    def student_labels(self, X: Array, answers: ClassifierAnswers, which: int) -> npt.NDArray[np.int64] | None:
        """Return the answers of a rejector's student; None for a rejector without one."""
        if not getattr(self.rejectors.template, "classes", 0):
            return None
        return np.asarray(rejector_scores(self.rejectors, X, answers, self.context, student=True)[which].argmax(axis=1))

    @cached_property
    def compute(self) -> dict[str, Any]:
        """What an input costs: :meth:`multiply_adds`, and the budget that the rejectors were sized to, if any."""
        return {"multiply_adds": self.multiply_adds(), "budget": self.budget}

    def multiply_adds(self) -> dict[str, int | None]:
        """Return multiply-adds of one input through ``client``, ``rejector`` and ``server``.

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
            "server": count(self.fixed_server) if self.server is None else multiply_adds(self.server, x),
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
