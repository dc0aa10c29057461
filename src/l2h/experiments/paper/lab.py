"""The laboratory: one data set and one seed, with what the experiments of the paper share.

The server's loss knows no costs, so one server training serves every cell, and all rejectors train beside it in the
same pass. Two such passes are kept as files and never run again: by the paper's recipe, and by ours.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from l2h import metrics
from l2h.clients import Client, as_client, unit_range
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.data import Dataset, load_dataset, split
from l2h.errors import DataError, RunError
from l2h.experiments.paper.grid import Scale
from l2h.files import digest, write_atomically
from l2h.judgement import Judgement
from l2h.models import build_scaled
from l2h.settings import PAPER_SERVER, Settings
from l2h.system import HelpSystem
from l2h.training import Context, Progress, RejectorSpec, Silent, pick_device, train_classifier
from l2h.training.inference import rejector_scores, server_log_probabilities
from l2h.training.loop import derive, repeatable, seeded

log = logging.getLogger("l2h")
CALIBRATION = 0.1
MISSING = 9
Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """What client, server and R rejectors make of n samples.

    Attributes:
        y: int (n,).
        client_label: int (n,).
        server_label: int (n,).
        scores: float32 (R, n, 2); of priced heads, the calibrated ``q_m`` and ``q_e``.
    """

    y: Labels
    client_label: Labels
    server_label: Labels
    scores: npt.NDArray[np.float32]

    @property
    def client_correct(self) -> BoolArray:
        """bool (n,)."""
        return np.asarray(self.client_label == self.y)

    @property
    def server_correct(self) -> BoolArray:
        """bool (n,)."""
        return np.asarray(self.server_label == self.y)


@dataclass(frozen=True)
class Pass:
    """One finished pass.

    Attributes:
        specs: of the R rejectors.
        test: on the test set.
        calibration: on samples that nothing was trained on.
        losses: (epochs, R), each rejector's mean training loss; empty for priced heads.
        facts: seconds and sizes.
    """

    specs: tuple[RejectorSpec, ...]
    test: Side
    calibration: Side
    losses: FloatArray
    facts: dict[str, Any]

    def judgement(self, which: int, on: str = "test") -> Judgement:
        """Of one rejector."""
        side = self.test if on == "test" else self.calibration
        scores = side.scores[which]
        if self.specs[which].loss != "priced":
            return Judgement(scores, None, None)
        return Judgement(scores, scores[:, 0].astype(np.float64), scores[:, 1].astype(np.float64))

    def find(self, loss: str, costs: Costs, sync: int | str = 1) -> int:
        """The rejector of a cell; the priced one answers for all."""
        for i, spec in enumerate(self.specs):
            if spec.loss == "priced" or (spec.loss == loss and spec.costs == costs and str(spec.sync) == str(sync)):
                return i
        raise DataError(f"this pass has no rejector for {loss}, {costs}, S = {sync}")

    def joined(self, other: Pass) -> Pass:
        """The rejectors of both, of two passes with the same server."""

        def both(one: Side, two: Side) -> Side:
            return replace(one, scores=np.concatenate([one.scores, two.scores]))

        return Pass(
            self.specs + other.specs,
            both(self.test, other.test),
            both(self.calibration, other.calibration),
            np.concatenate([self.losses, other.losses], axis=1),
            self.facts,
        )

    def save(self, path: Path, key: dict[str, Any]) -> None:
        """As an ``.npz`` without pickles."""
        meta = {"key": key, "specs": [spec.as_dict() for spec in self.specs], "facts": self.facts}
        arrays = {
            f"{name}_{field}": getattr(side, field)
            for name, side in (("test", self.test), ("calibration", self.calibration))
            for field in Side.__dataclass_fields__
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), losses=self.losses, **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path, key: dict[str, Any]) -> Pass | None:
        """What :meth:`save` kept; None where there is nothing, or of other settings.

        Raises:
            RunError: the file is damaged.
        """
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            meta = json.loads(str(arrays["meta"]))
            if meta["key"] != json.loads(json.dumps(key)):
                return None
            sides = {
                name: Side(*(arrays[f"{name}_{field}"] for field in Side.__dataclass_fields__))
                for name in ("test", "calibration")
            }
            specs = tuple(RejectorSpec.from_dict(spec) for spec in meta["specs"])
            return cls(specs, sides["test"], sides["calibration"], arrays["losses"], meta["facts"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} is damaged: {error}; remove it, and it is made again") from error


class Lab:
    """One data set and one seed.

    Args:
        data: the folder of the data sets, or ``digits``.
        name: ``cifar10``, ``svhn`` or ``cifar100``.
        seed: of everything drawn.
        scale: full or quick.
        folder: where passes are kept.
        device: as in :class:`l2h.Settings`.
        precision: of our recipe; the paper's runs in fp32.
        progress: who is told.
    """

    def __init__(
        self,
        data: str,
        name: str,
        seed: int,
        scale: Scale,
        folder: Path,
        *,
        device: str = "auto",
        precision: str = "fp32",
        progress: Progress | None = None,
    ) -> None:
        self.data, self.name, self.seed, self.scale, self.folder = data, name, seed, scale, folder
        self.device, self.precision, self.progress = device, precision, progress or Silent()
        self._dataset: Dataset | None = None

    @property
    def dataset(self) -> Dataset:
        """Loaded when first needed."""
        if self._dataset is None:
            self._dataset = load_named(self.data, self.name, self.seed, self.scale.limit)
        return self._dataset

    def published(self, missing: int | None = None, specs: Sequence[RejectorSpec] | None = None) -> Pass:
        """By the paper's recipe; ``missing`` is a class that the client never saw."""
        chosen = tuple(specs or self.scale.specs())
        settings = self.scale.published_settings(self.seed, self.device)
        return self.keep("published", missing, chosen, lambda: self._in_chunks(missing, chosen, settings))

    def ours(self, missing: int | None = None) -> Pass:
        """By our recipe: one priced rejector for all prices."""
        return self.keep("ours", missing, (RejectorSpec(),), lambda: self._help(missing))

    def keep(self, recipe: str, missing: int | None, specs: tuple[RejectorSpec, ...], make: Callable[[], Pass]) -> Pass:
        """The pass that is there, or the one that ``make`` gives, which is kept."""
        data = self.dataset
        key = {
            "data": digest(data.X_train, data.y_train, data.X_test, data.y_test),
            "seed": self.seed,
            "scale": {k: str(v) for k, v in vars(self.scale).items()},
            "specs": [spec.as_dict() for spec in specs],
            "precision": self.precision,
        }
        path = self.folder / f"{self.name}-{recipe}{'' if missing is None else '-missing'}-{self.seed}.npz"
        kept = Pass.load(path, key)
        if kept is None:
            kept = make()
            kept.save(path, key)
        else:
            log.info("%s: seed %d by recipe %s is there already", self.name, self.seed, recipe)
        return kept

    def parts(self) -> tuple[Labels, Labels]:
        """Rows to train on, and rows for calibration alone: the paper calibrates on the test set, we do not."""
        train, calibration = split(self.dataset.y_train, (1 - CALIBRATION, CALIBRATION), derive(self.seed, "parts"))
        return train, calibration

    def client(self, context: Context, missing: int | None) -> Client:
        """LeNet-5 by the authors' settings, without one class where ``missing`` names it."""
        rows = self.parts()[0]
        if missing is not None:
            rows = rows[self.dataset.y_train[rows] != missing]
        return train_client(self.dataset, rows, self.seed, self.scale, context)

    def _in_chunks(self, missing: int | None, specs: tuple[RejectorSpec, ...], settings: Settings) -> Pass:
        """All rejectors in one pass or, where the GPU's memory is too small for that, in halves.

        Nothing changes but the time: the server's training does not depend on the rejectors beside it.
        """
        try:
            return self._publish(missing, specs, settings)
        except torch.OutOfMemoryError:
            if len(specs) == 1:
                raise
        torch.cuda.empty_cache()
        half = (len(specs) + 1) // 2
        log.warning("%d rejectors do not fit into the GPU's memory: %d and then the rest", len(specs), half)
        first, second = (self._in_chunks(missing, part, settings) for part in (specs[:half], specs[half:]))
        return first.joined(second)

    def _publish(self, missing: int | None, specs: tuple[RejectorSpec, ...], settings: Settings) -> Pass:
        context = self._context(settings)
        with repeatable(settings, context.device):
            client = self.client(context, missing)
        system = self._system(client, "separate", settings, {})
        train, calibration = self.parts()
        X, y = self.dataset.X_train, self.dataset.y_train
        system.fit(X[train], y[train], specs=specs, progress=self.progress)
        rows = [row for row in system.history if row.get("rejector_loss") is not None]
        columns = [f"rejector_loss_{i}" for i in range(len(specs))] if len(specs) > 1 else ["rejector_loss"]
        return Pass(
            specs,
            self._side(system, self.dataset.X_test, self.dataset.y_test),
            self._side(system, X[calibration], y[calibration]),
            np.array([[float(row[column]) for column in columns] for row in rows]),
            self._facts(context.history + system.history),
        )

    def _help(self, missing: int | None) -> Pass:
        settings = Settings(
            seed=self.seed,
            device=self.device,
            precision=self.precision,
            augment=self.dataset.augment,
            honest="holdout",
            server=self.scale.server_stage,
            rejector=self.scale.rejector_stage,
        )
        context = self._context(replace(settings, augment="none"))
        with repeatable(settings, context.device):
            client = self.client(context, missing)
        system = self._system(client, "attached", settings, self.scale.rejector_options)
        train, calibration = self.parts()
        X, y = self.dataset.X_train, self.dataset.y_train
        system.fit(X[train], y[train], progress=self.progress)
        system.calibrate(X[calibration], y[calibration])
        return Pass(
            system.specs,
            self._side(system, self.dataset.X_test, self.dataset.y_test),
            self._side(system, X[calibration], y[calibration]),
            np.zeros((0, 1)),
            self._facts(context.history + system.history) | {"multiply_adds": system.multiply_adds()},
        )

    def _system(self, client: Client, rejector: str, settings: Settings, options: dict[str, Any]) -> HelpSystem:
        return HelpSystem(
            client=client,
            server=self.scale.server,
            rejector=rejector,
            settings=settings,
            class_names=self.dataset.class_names,
            dataset=self.name,
            server_options=self.scale.server_options,
            rejector_options=options,
        )

    def _side(self, system: HelpSystem, X: Array, y: Labels) -> Side:
        assert system.server is not None
        assert system.rejectors is not None
        context = self._context(system.settings)
        answers = system.client.answers(X, system.num_classes)
        server = server_log_probabilities(system.server, X, context).argmax(axis=1)
        scores = rejector_scores(system.rejectors, X, answers, context)
        if system.platt is not None and system.specs[0].loss == "priced":
            heads = [metrics.apply_platt(scores[0, :, k], *system.platt[0, k]) for k in (0, 1)]
            scores = np.stack(heads, axis=-1)[None].astype(np.float32)
        return Side(y, answers.label, server, scores)

    def _context(self, settings: Settings) -> Context:
        return Context(settings, pick_device(settings.device), progress=self.progress)

    def _facts(self, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
        seconds: dict[str, float] = {}
        for row in history:
            seconds[row["stage"]] = round(seconds.get(row["stage"], 0.0) + float(row["seconds"]), 3)
        return {"seconds": seconds}


def train_client(dataset: Dataset, rows: Labels, seed: int, scale: Scale, context: Context) -> Client:
    """LeNet-5 by the authors' settings on some rows of the training set."""
    with seeded(context.device, seed, "client"):
        net = build_scaled("lenet5", dataset.input_shape, dataset.num_classes)
    settings = replace(PAPER_SERVER, epochs=scale.client_epochs, lr=scale.lr)
    train_classifier("client", net, unit_range(dataset.X_train[rows]), dataset.y_train[rows], settings, context)
    return as_client(net)


def load_named(data: str, name: str, seed: int, limit: int | None) -> Dataset:
    """A data set of the experiments from a folder, or the bundled digits in its place; raises as :func:`find_named`."""
    return load_dataset(find_named(data, name), seed=seed, limit=limit)


def find_named(data: str, name: str) -> str:
    """Where a folder has a data set, as :func:`l2h.load_dataset` takes it.

    Raises:
        DataError: the folder lacks it; the message says which and what may lie there.
    """
    if data == "digits":
        return data
    places = [Path(data) / name, *(Path(data) / other for other in PLACES[name])]
    for place in places:
        if place.exists() or place.with_name(f"{place.name}-train.parquet").exists():
            return str(place)
    raise DataError(
        f"{data} has no {name}: put there {name}-train.parquet and {name}-test.parquet (Hugging Face's image layout), "
        f"or {' or '.join(PLACES[name])} as published; or run on the bundled digits with --data digits --quick"
    )


PLACES = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10.npz"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100.npz"),
    "svhn": ("train_32x32.mat", "svhn.npz"),
}
