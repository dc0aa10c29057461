"""How a model is to be fed, found out on labelled samples before anything is trained, and whether it looks broken."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from l2h.classifiers.base import Array, Classifier, Labels
from l2h.classifiers.preprocessing import RANGES, UNIT_RANGE
from l2h.errors import ClientError

log = logging.getLogger("l2h")
#: How many labelled samples are looked at, and below how many nothing is said about accuracy.
_SAMPLES, _FEWEST = 512, 30
#: Two scales are told apart where the difference of their right answers is above so many standard errors.
_APART = 2.0
#: A classifier is called broken where it is not this many standard errors above chance, or this many below what was
#: stated.
_ABOVE, _BELOW = 2.0, 3.0


@dataclass(frozen=True)
class _Trial:
    scale: str
    right: npt.NDArray[np.bool_]
    loss: float  # mean log loss of the true class; 0 where there are labels only

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


def settle_scale(classifier: Classifier, X: Array, y: Labels, num_classes: int, who: str) -> None:
    """Choose the scale of uint8 images for a classifier where nobody said it, by its answers to labelled samples.

    Every scale is tried. Among those whose right answers cannot be told apart from the most (two standard errors of
    the paired difference), the smallest log loss decides, and where there is none, or it is equal, the scale of old.
    The choice is logged, as a warning where right answers do not decide it, and kept in ``classifier.preprocessing``
    and ``classifier.scales_tried``.

    ``who`` is what messages call the classifier: ``client`` or ``server``.
    """
    given = classifier.preprocessing
    declared = classifier.feed(X.shape[1:])
    if isinstance(declared.size, tuple) and given.size is None:
        height, width = X.shape[2:]
        log.info(
            "the %s takes images of %sx%s, to which those of %dx%d are brought", who, *declared.size, height, width
        )
    if declared.layout is not None and given.layout is None:
        log.info("the %s takes its channels last (%s)", who, declared.layout)
    if X.dtype != np.uint8:
        if given.scale is not None:
            raise ClientError(
                f"scale={given.scale!r} of the {who} is for uint8 images, the samples are {X.dtype} and are fed as "
                "they are: leave it out, or give mean and std"
            )
        return
    if given.pixel_scale is not None or not classifier.tries_scales:
        return
    rows = probe_rows(len(X))
    scales = sorted(RANGES, key=lambda scale: scale != (classifier.usual_scale or "0..255"))  # the one of old first
    trials: list[_Trial] = []
    for scale in scales:
        if scale == "imagenet" and X.shape[1] != 3:
            continue
        classifier.preprocessing = replace(given, scale=scale)
        try:
            trials.append(_try(classifier, X[rows], y[rows], num_classes, scale))
        except ClientError:  # a wrong scale may give what is not finite
            if not trials:
                raise
        finally:
            classifier.preprocessing = given
    chosen, tied = _choose(trials)
    classifier.preprocessing = replace(given, scale=chosen.scale)
    others = sorted((trial for trial in trials if trial is not chosen), key=lambda trial: -trial.accuracy)
    classifier.scales_tried = {trial.scale: round(trial.accuracy, 4) for trial in (chosen, *others)}
    log.log(
        logging.WARNING if tied else logging.INFO,
        "the %s is fed images scaled to %s, which gives %.1f%% right answers on %d labelled samples (%s)%s; "
        "--%s-scale or l2h.Preprocessing(scale=...) sets another",
        who,
        chosen.scale,
        100 * chosen.accuracy,
        len(rows),
        ", ".join(f"{trial.scale} {100 * trial.accuracy:.1f}%" for trial in others),
        f"; {', '.join(tied)} cannot be told apart from it by right answers" if tied else "",
        who,
    )


def check_accuracy(classifier: Classifier, label: Labels, y: Labels, who: str, images: bool = True) -> None:
    """Warn where answers are no better than chance, or far below what the user expects of the classifier.

    Chance is what the same answers would get if they had nothing to do with the labels.
    """
    n = len(y)
    if n < _FEWEST or classifier.preprocessing is UNIT_RANGE:  # the latter is of nets trained here, fed as in training
        return
    accuracy = float(np.mean(label == y))
    size = int(max(label.max(), y.max())) + 1
    chance = float(np.bincount(label, minlength=size) @ np.bincount(y, minlength=size)) / n**2
    expected = classifier.expected_accuracy
    feeding = f"how it is fed (--{who}-scale, --{who}-mean, --{who}-std, --{who}-layout, l2h.Preprocessing) and "
    hint = f"see {feeding if images else ''}whether its classes are in the order of the labels"
    found = f"the {who} gives {accuracy:.1%} right answers on {n} samples"
    if accuracy <= chance + _ABOVE * math.sqrt(chance * (1 - chance) / n):
        text = f"{found}, hardly more than chance ({chance:.1%}): {hint}"
    elif expected is not None and accuracy < expected - _BELOW * math.sqrt(expected * (1 - expected) / n) - 1e-9:
        text = f"{found}, far below the {expected:.1%} stated: {hint}"
    else:
        return
    log.warning("%s", text)


def probe_rows(n: int, most: int = _SAMPLES) -> npt.NDArray[np.int64]:
    """Return which of n samples are looked at: a few hundred, or ``most``, drawn the same way every time."""
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def _try(classifier: Classifier, X: Array, y: Labels, num_classes: int, scale: str) -> _Trial:
    before = classifier.probabilities
    try:
        answers = classifier.answers(X, num_classes)
    finally:
        classifier.probabilities = before  # what a wrong scale makes of the scores decides nothing
    loss = -float(answers.log_probability[np.arange(len(y)), y].mean()) if answers.has_scores else 0.0
    return _Trial(scale, answers.label == y, loss)


def _choose(trials: Sequence[_Trial]) -> tuple[_Trial, list[str]]:
    """Return the trial to take, and the scales that right answers do not tell from it."""
    best = max(trials, key=lambda trial: trial.right.sum())
    equal = [trial for trial in trials if not _worse(trial, best)]
    chosen = min(equal, key=lambda trial: trial.loss)
    return chosen, [trial.scale for trial in equal if trial is not chosen]


def _worse(trial: _Trial, best: _Trial) -> bool:
    lost, won = int((best.right & ~trial.right).sum()), int((trial.right & ~best.right).sum())
    return lost - won > _APART * math.sqrt(lost + won)
