"""A finished pass of training: what client, server and rejectors made of the samples, kept as a file."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import Judgement, RejectorSpec
from l2h.errors import DataError, RunError
from l2h.files import write_atomically

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PassOutcomes:
    """What client, server and R rejectors make of n samples."""

    y: Labels  # int (n,)
    client_label: Labels  # int (n,)
    server_label: Labels  # int (n,)
    scores: npt.NDArray[np.float32]  # float32 (R, n, 2); of priced heads, the calibrated ``q_m`` and ``q_e``

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
    """One finished pass."""

    specs: tuple[RejectorSpec, ...]  # of the R rejectors
    test: PassOutcomes  # on the test set
    calibration: PassOutcomes  # on samples that nothing was trained on
    losses: FloatArray  # (epochs, R), each rejector's mean training loss; empty for priced heads
    facts: dict[str, Any]  # seconds and sizes

    def judgement(self, which: int, on: str = "test") -> Judgement:
        """Of one rejector."""
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
            self.facts,
        )

    def save(self, path: Path, key: dict[str, Any]) -> None:
        """As an ``.npz`` without pickles."""
        meta = {"key": key, "specs": [spec.as_dict() for spec in self.specs], "facts": self.facts}
        arrays = {
            f"{name}_{field}": getattr(side, field)
            for name, side in (("test", self.test), ("calibration", self.calibration))
            for field in PassOutcomes.__dataclass_fields__
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
                name: PassOutcomes(*(arrays[f"{name}_{field}"] for field in PassOutcomes.__dataclass_fields__))
                for name in ("test", "calibration")
            }
            specs = tuple(RejectorSpec.from_dict(spec) for spec in meta["specs"])
            return cls(specs, sides["test"], sides["calibration"], arrays["losses"], meta["facts"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} is damaged: {error}; remove it, and it is made again") from error
