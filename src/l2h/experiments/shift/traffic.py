"""InputStream that differs from the calibration samples: which shifts there are, and the inputs of each.

An input is a row of outcomes: what the rejector makes of a sample, and who would answer it right. Corrupted images need
all models to run again. A change of the mix of inputs only draws other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray
from l2h.data.corruptions import CORRUPTIONS, corrupt
from l2h.decision import Judgement
from l2h.errors import SettingsError
from l2h.metrics import AnswererChoice
from l2h.system import HelpSystem
from l2h.system.measuring import AskedSamples

CLEAN = "none"
#: More and more inputs of the classes that the client gets wrong most often, or least often; more and more of those
#: that the server is least sure of. At strength s the share s / 5 of the inputs is drawn from that half alone.
HARD_CLASSES, EASY_CLASSES, HARD_INPUTS = "hard-classes", "easy-classes", "hard-inputs"
MIXES = (HARD_CLASSES, EASY_CLASSES, HARD_INPUTS)
KINDS = (*CORRUPTIONS, *MIXES)
OTHER = "data"  # inputs of another data set
STRENGTHS = range(1, 6)
#: A stream has so many inputs at least: drift is watched over 500. A smaller test set is gone through several times.
LENGTH = 2000


@dataclass(frozen=True)
class Shift:
    """One way in which traffic differs."""

    kind: str
    strength: int = 0  # 0 where there is but one
    source: str = ""  # of another data set

    @classmethod
    def parse(cls, text: str) -> list[Shift]:
        """Read ``blur:3``, or ``blur`` for all its strengths."""
        kind, colon, strength = text.partition(":")
        if kind not in KINDS or (colon and strength not in map(str, STRENGTHS)):
            known = ", ".join(KINDS)
            raise SettingsError(
                f"--shift {text!r}: write KIND:STRENGTH, such as blur:3, or KIND; the kinds are {known}"
            )
        return [cls(kind, number) for number in ([int(strength)] if colon else STRENGTHS)]

    def __str__(self) -> str:
        return self.source or (f"{self.kind}:{self.strength}" if self.strength else self.kind)


@dataclass(frozen=True)
class InputStream:
    """Inputs in the order in which they come, as outcomes."""

    judgement: Judgement  # of n inputs
    right: BoolArray  # bool (n, J), whether each answerer is right
    classes: npt.NDArray[np.int64]  # (n,)
    sure: FloatArray  # (n,), the largest probability of the first server
    sample: npt.NDArray[np.intp]  # (n,), its number: one sample may come several times

    @classmethod
    def of(cls, system: HelpSystem, which: int, X: Any, y: npt.NDArray[np.int64]) -> InputStream:
        """Run all models on samples that were checked."""
        fitted = system.require_fitted()
        asked = AskedSamples.of(fitted, X, y)
        features = None if asked.student is None else asked.student.features[which]
        judgement = fitted.judgement(asked.scores[which], which, features)
        label = {"client": asked.answers.label}
        label |= {name: scores.argmax(axis=1) for name, scores in asked.server_probability.items()}
        if asked.student is not None:
            label["student"] = asked.student.label[which]
        right = np.column_stack([label[one.name] == y for one in judgement.answerers])
        sure = next(iter(asked.server_probability.values())).max(axis=1)
        return cls(judgement, right, y, np.asarray(sure, dtype=np.float64), np.arange(len(y)))

    @classmethod
    def joined(cls, parts: Sequence[InputStream]) -> InputStream:
        """Return the inputs of several streams of one system, one after the other."""
        first, judged = parts[0], [part.judgement for part in parts]
        stated = [one.probability for one in judged if one.probability is not None]
        probability = np.concatenate(stated) if stated else None
        scores = np.concatenate([one.scores for one in judged])
        right, classes, sure, sample = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("right", "classes", "sure", "sample")
        )
        return cls(Judgement(scores, probability, first.judgement.answerers), right, classes, sure, sample)

    def __len__(self) -> int:
        return len(self.classes)

    def rows(self, rows: npt.NDArray[np.intp]) -> InputStream:
        """Return these inputs in this order."""
        arrays = (getattr(self, name)[rows] for name in ("right", "classes", "sure", "sample"))
        return InputStream(self.judgement.rows(rows), *arrays)

    def chosen(self, column: npt.NDArray[np.intp]) -> AnswererChoice:
        """Return what comes of it where these columns (n,) answer."""
        return AnswererChoice(self.judgement.answerers, self.right, column)

    @property
    def distinct(self) -> int:
        """How many samples there are."""
        return len(np.unique(self.sample))

    def streamed(self, seed: int, length: int | None = None) -> InputStream:
        """Return the inputs in random orders, again and again until there are ``length``; None: equally often each."""
        rng = np.random.default_rng(seed)
        rounds = [rng.permutation(len(self)) for _ in range(-(-(length or LENGTH) // len(self)))]
        return self.rows(np.concatenate(rounds)[:length])

    def mixed(self, shift: Shift, seed: int) -> InputStream:
        """Return a stream in which the share ``strength / 5`` of the inputs is drawn from one half of the samples."""
        rng, chosen = np.random.default_rng((seed, KINDS.index(shift.kind))), self._half(shift.kind)
        n = max(len(self), LENGTH)
        some = rng.choice(np.flatnonzero(chosen), n)
        any_ = rng.permutation(np.resize(rng.permutation(len(self)), n))
        return self.rows(np.where(rng.random(n) < shift.strength / 5, some, any_))

    def _half(self, kind: str) -> BoolArray:
        if kind == HARD_INPUTS:
            return np.asarray(self.sure <= np.median(self.sure))
        found = np.unique(self.classes)
        right = [self.right[self.classes == one, 0].mean() for one in found]
        order = found[np.argsort(right, kind="stable")]
        half = order[: max(1, len(order) // 2)] if kind == HARD_CLASSES else order[len(order) // 2 :]
        return np.isin(self.classes, half)


def possible_shifts(X: Any, asks_somebody: bool) -> list[Shift]:
    """Return the shifts that these inputs can take; corruptions would ask a server that is somebody's API anew."""
    images = getattr(X, "dtype", None) == np.uint8 and len(X.shape) == 4 and not asks_somebody
    kinds = [kind for kind in CORRUPTIONS if images and (kind != "jpeg" or X.shape[1] in (1, 3))]
    return [Shift(kind, strength) for kind in (*kinds, *MIXES) for strength in STRENGTHS]


def shifted(
    shifts: Sequence[Shift], clean: InputStream, system: HelpSystem, which: int, X: Any, seed: int
) -> Iterator[tuple[Shift, InputStream]]:
    """Give each shift with its stream; ``clean`` are the outcomes of the samples X."""
    for shift in shifts:
        if shift.kind == CLEAN:
            yield shift, clean.streamed(seed)
        elif shift.kind in MIXES:
            yield shift, clean.mixed(shift, seed)
        else:
            worse = corrupt(X, shift.kind, shift.strength, seed)
            yield shift, InputStream.of(system, which, worse, clean.classes).streamed(seed)
