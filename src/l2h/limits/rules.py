"""A bound on how often the server is asked, and the calibrated rules that meet it (BRR, bounded reject rate).

| rule | the bound q is met | what goes |
|------|--------------------|-----------|
| :func:`stochastic` | in expectation | the rejector's choice, thinned or filled up at random |
| :func:`threshold_for` | on the calibration set, and in expectation | the samples that gain most |
| :func:`guaranteed_threshold` | with a stated confidence over calibrations | the samples that gain most |

All three are calibrated once and then act on each sample alone, so none of them is a cap on what is really
sent: that is :class:`l2h.limits.Limiter`. The calibration set must never be the test set.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray, as_bool
from l2h.errors import DataError, L2HError

#: What :meth:`RateLimit.parse` reads, for messages and help texts.
ACCEPTED = (
    "'20%' or '0.2' (a share), '20%@95%' (a share, with confidence), '20%/1000' (a share of any 1000 "
    "requests in a row), '100/1h' (a count in a time window; units d, h, m, s)"
)

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}[dhms])+")
_SHARE = re.compile(rf"(?P<share>[+-]?{_NUMBER}%?)(?:/(?P<window>[+-]?\d+))?(?:@(?P<confidence>[+-]?{_NUMBER}%?))?")
_COUNT = re.compile(rf"(?P<count>[+-]?{_NUMBER})/(?P<per>[+-]?(?:{_NUMBER}[dhms])+)")


class LimitError(L2HError, ValueError):
    """A limit that cannot be read or met, or a limiter that cannot keep it."""


@dataclass(frozen=True, init=False)
class RateLimit:
    """How often the server may be asked: a share of the requests, or a count in a time window.

    Args:
        count: at most this many requests in any time window of length ``per``. Whole, 0 or more.
        per: length of that window: ``"30s"``, ``"15m"``, ``"1h"``, ``"1d"``, ``"1h30m"``, seconds, or a
            timedelta.
        fraction: at most this share of the requests, in [0, 1].
        window: makes the share a hard cap at run time: of any ``window`` requests in a row at most
            :attr:`cap` go.
        confidence: makes the share a guarantee: over repeated calibrations the true rate exceeds ``fraction``
            in at most ``1 - confidence`` of them (:func:`guaranteed_threshold`). Within (0, 1).

    Raises:
        LimitError: a value out of its range, or not exactly one of ``count`` and ``fraction``.

    Example:
        >>> RateLimit(100, per="1h30m")
        RateLimit(count=100, per=5400.0, fraction=None, window=None, confidence=None)
        >>> RateLimit.parse("20%/1000").cap
        200
        >>> str(RateLimit(fraction=0.2, confidence=0.95))
        '20%@95%'
    """

    count: int | None
    per: float | None
    fraction: float | None
    window: int | None
    confidence: float | None

    def __init__(
        self,
        count: float | None = None,
        per: str | float | timedelta | None = None,
        *,
        fraction: float | None = None,
        window: int | None = None,
        confidence: float | None = None,
    ) -> None:
        if (count is None) == (fraction is None):
            given = "neither count nor fraction" if count is None else "both count and fraction"
            raise LimitError(f"{given} given: write RateLimit(100, per='1h') or RateLimit(fraction=0.2)")
        whole = share = seconds = requests = sure = None
        if count is not None:
            whole = _whole("count", count, least=0, hint="; for a share write RateLimit(fraction=0.2)")
            if per is None:
                raise LimitError(f"count={whole} has no time window: write RateLimit({whole}, per='1h')")
            seconds = _seconds(per)
            if window is not None or confidence is not None:
                raise LimitError("window and confidence belong to a fraction: a count has per alone")
        if fraction is not None:
            share = checked_share("fraction", fraction)
            if per is not None:
                raise LimitError(f"per={per!r} belongs to a count: a fraction takes window")
            if window is not None:
                requests = _whole("window", window, least=1, hint=" of requests")
                if share > 0 and _floor(share, requests) == 0:
                    least = math.ceil(1 / _exact(share))
                    raise LimitError(
                        f"fraction={share:g} of window={requests} is less than one request: none could go, "
                        f"give a window of {least} or more"
                    )
            if confidence is not None:
                sure = checked_confidence(confidence)
        values = {"count": whole, "per": seconds, "fraction": share, "window": requests, "confidence": sure}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def cap(self) -> int | None:
        """The most requests any one window may hold; ``None`` for a fraction without a window."""
        if self.count is not None:
            return self.count
        if self.fraction is None or self.window is None:
            return None
        return _floor(self.fraction, self.window)

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """Read a limit from text: the inverse of ``str``.

        Accepts ``20%`` or ``0.2``, ``20%/1000`` (window), ``20%@95%`` (confidence) and ``100/1h``.

        Raises:
            LimitError: the text is none of these, or a value is out of its range.
        """
        plain = "".join(str(text).split())
        if match := _COUNT.fullmatch(plain):
            number = match["count"]
            return cls(int(number) if number.isdigit() else float(number), match["per"])
        match = _SHARE.fullmatch(plain)
        if match is None or (match["window"] is not None and not match["share"].endswith("%")):
            raise LimitError(f"cannot read the limit {text!r}: accepted are {ACCEPTED}")
        return cls(
            fraction=_read_share(match["share"]),
            window=None if match["window"] is None else int(match["window"]),
            confidence=None if match["confidence"] is None else _read_share(match["confidence"]),
        )

    def __str__(self) -> str:
        if self.per is not None:
            return f"{self.count}/{_duration(self.per)}"
        assert self.fraction is not None
        window = "" if self.window is None else f"/{self.window}"
        confidence = "" if self.confidence is None else f"@{_percent(self.confidence)}"
        return _percent(self.fraction) + window + confidence


def stochastic(remote: npt.ArrayLike, q1: float, q: float, rng: np.random.Generator | int) -> BoolArray:
    """The paper's post-hoc rule (Algorithms 4 and 5): thin what the rejector sends, or fill up with what it
    keeps.

    If ``q < q1`` a sample the rejector sends goes with probability ``q / q1`` and else stays; if ``q >= q1``
    a sample it keeps goes with probability ``(q - q1) / (1 - q1)``. With ``q = 0`` nothing goes and with ``q
    = 1`` everything, whatever was measured.

    Args:
        remote: bool (n,), what the rejector says.
        q1: the share it sends, measured on a calibration set.
        q: the bound.
        rng: a generator or a seed. One number is drawn for each sample.

    Raises:
        LimitError: q1 or q outside [0, 1].

    Example:
        >>> int(stochastic([True] * 1000, q1=1.0, q=0.25, rng=0).sum())
        231
    """
    sends = as_bool("remote", remote)
    q1, q = checked_share("q1", q1), checked_share("q", q)
    draw = np.random.default_rng(rng).random(sends.shape)
    if q in {0, 1}:
        return np.full(sends.shape, q == 1)
    if q < q1:
        return np.asarray(sends & (draw < q / q1))
    return np.asarray(sends | (draw < (q - q1) / (1 - q1)))


@dataclass(frozen=True)
class Threshold:
    """A cut on the rejector's score, larger meaning more to gain: what is above it goes.

    Attributes:
        value: the cut. A score above it is sent.
        tie_share: probability that a score equal to it is sent.
        q: the bound it was made for.
        above: share of the calibration scores strictly above the cut, against which drift is measured.
        samples: how many calibration scores there were.
        confidence: of the guarantee, ``None`` where there is none.
    """

    value: float
    tie_share: float
    q: float
    above: float
    samples: int
    confidence: float | None = None

    def apply(self, scores: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> BoolArray:
        """True where the sample is sent.

        Args:
            scores: (n,), the rejector's scores.
            rng: a generator or a seed, to break ties; needed only where ``tie_share`` is neither 0 nor 1.
        """
        s = _scores("scores", scores)
        if self.tie_share in (0.0, 1.0):
            return np.asarray(s >= self.value if self.tie_share else s > self.value)
        if rng is None:
            raise LimitError(f"tie_share={self.tie_share:g} breaks ties at random: pass rng, such as a seed")
        draw = np.random.default_rng(rng).random(s.shape)
        return np.asarray((s > self.value) | ((s == self.value) & (draw < self.tie_share)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: such a cut is written as text."""
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {
            "value": value,
            "tie_share": self.tie_share,
            "q": self.q,
            "above": self.above,
            "samples": self.samples,
            "confidence": self.confidence,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Threshold:
        """The inverse of :meth:`as_dict`."""
        return cls(**{**values, "value": float(values["value"])})


def threshold_for(scores_cal: npt.ArrayLike, q: float) -> Threshold:
    """The cut that sends the share ``q`` of the calibration samples, those of the highest scores.

    Scores equal to the cut are sent with the probability that makes the expected share exactly q on the
    calibration set, so the bound is also met where scores are few and often equal.

    Raises:
        LimitError: q outside [0, 1], or no calibration samples.
        DataError: scores that are not (n,) or hold NaN.

    Example:
        >>> cut = threshold_for([0.1, 0.4, 0.4, 0.9], q=0.5)
        >>> cut.value, cut.tie_share
        (0.4, 0.5)
    """
    s, q = np.sort(_scores("scores_cal", scores_cal)), checked_share("q", q)
    if q in {0, 1}:
        return _everything(q, len(s))
    if not len(s):
        raise LimitError(f"q={q:g} needs calibration samples, and there are none")
    wanted = _exact(q) * len(s)
    value = s[len(s) - math.ceil(wanted)]
    above = len(s) - int(np.searchsorted(s, value, side="right"))
    ties = len(s) - int(np.searchsorted(s, value, side="left")) - above
    return Threshold(float(value), float((wanted - above) / ties), q, above / len(s), len(s))


def guaranteed_threshold(scores_cal: npt.ArrayLike, q: float, confidence: float) -> Threshold:
    """The lowest cut whose true rate is at most ``q`` with the given confidence over the draw of the
    calibration set.

    Let S be a score, ``G(v) = P(S > v)`` the true rate of the cut v, and ``v* = inf{v : G(v) <= q}``, the
    lowest cut that is allowed. G does not increase and is continuous from the right, so a cut v breaks the
    bound exactly if ``v < v*``. Take for the cut the j-th largest of n independent calibration scores: it
    lies below v* exactly if at most j - 1 of them are v* or more. Each is so with probability ``P(S >= v*) >=
    q``, hence the chance of a broken bound is at most ``P(Binomial(n, q) <= j - 1)``, with equality where the
    scores have no ties. The largest j for which this is no more than ``1 - confidence`` sends the most.
    Nothing was assumed of the scores but independence; scores equal to the cut must stay, so the cut is
    strict.

    Raises:
        LimitError: q or confidence out of range, or fewer samples than the smallest n with
            ``(1 - q)**n <= 1 - confidence``, for then even the highest score is no safe cut.
        DataError: scores that are not (n,) or hold NaN.

    Example:
        >>> cut = guaranteed_threshold(np.arange(1000) / 1000, q=0.2, confidence=0.95)
        >>> cut.value, cut.above
        (0.821, 0.178)
    """
    s, q = np.sort(_scores("scores_cal", scores_cal)), checked_share("q", q)
    confidence = checked_confidence(confidence)
    if q in {0, 1}:
        return _everything(q, len(s), confidence)
    n, needed = len(s), samples_needed(q, confidence)
    if n < needed:
        raise LimitError(
            f"q={q:g} at confidence {confidence:g} needs at least {needed} calibration samples, got {n}: "
            f"give more samples, a larger q or less confidence"
        )
    allowed = float(1 - _exact(confidence)) * (1 + 1e-12)
    j = max(1, int(np.searchsorted(binomial_cdf(n, q), allowed, side="right")))
    value = s[n - j]
    above = n - int(np.searchsorted(s, value, side="right"))
    return Threshold(float(value), 0.0, q, above / n, n, confidence)


def samples_needed(q: float, confidence: float) -> int:
    """The fewest calibration samples with which :func:`guaranteed_threshold` can send anything.

    Example:
        >>> samples_needed(0.2, 0.95)
        14
    """
    q, confidence = checked_share("q", q), checked_confidence(confidence)
    if q in {0, 1}:
        return 0
    enough = math.log(float(1 - _exact(confidence))) * (1 - 1e-12)
    # As fractions: for a tiny q the quotient is beyond the largest float.
    return max(1, math.ceil(Fraction(enough) / Fraction(math.log1p(-q))))


def binomial_cdf(n: int, p: float) -> FloatArray:
    """``P(Binomial(n, p) <= k)`` for k = 0..n, with 0 < p < 1.

    The probabilities are built from the mode outwards by the ratios of neighbours, in logs, and divided by
    their sum: no factorial is formed, so nothing overflows and no digits are lost for large n.

    Example:
        >>> binomial_cdf(2, 0.5)
        array([0.25, 0.75, 1.  ])
    """
    k = np.arange(n)
    ratio = np.log((n - k) / (k + 1.0)) + (math.log(p) - math.log1p(-p))
    mode = min(n, int((n + 1) * p))
    log_mass = np.zeros(n + 1)
    log_mass[mode + 1 :] = np.cumsum(ratio[mode:])
    log_mass[:mode] = -np.cumsum(ratio[:mode][::-1])[::-1]
    mass = np.exp(log_mass)
    return np.asarray(np.minimum(np.cumsum(mass) / mass.sum(), 1.0))


def checked_share(name: str, value: Any) -> float:
    """The value as a float in [0, 1]."""
    number = _number(name, value)
    if not 0 <= number <= 1:
        hint = f"; {number:g}% is {number / 100:g}" if 2 <= number <= 100 else ""
        raise LimitError(f"{name}={number:g} is outside [0, 1]: give a share of the requests{hint}")
    return number


def checked_confidence(value: Any) -> float:
    """The value as a float within (0, 1)."""
    number = _number("confidence", value)
    if not 0 < number < 1:
        raise LimitError(f"confidence={number:g} is outside (0, 1): give the chance that it holds, such as 0.95")
    return number


def _everything(q: float, samples: int, confidence: float | None = None) -> Threshold:
    """The cut for q = 0, which sends nothing, and for q = 1, which sends everything."""
    return Threshold(-math.inf if q else math.inf, q, q, q, samples, confidence)


def _scores(name: str, values: npt.ArrayLike) -> FloatArray:
    s = np.asarray(values, dtype=np.float64)
    if s.ndim != 1:
        raise DataError(f"{name} must be (n,), one score a sample; got shape {s.shape}")
    if np.isnan(s).any():
        row = int(np.argmax(np.isnan(s)))
        raise DataError(f"{name}: score of sample {row} is NaN: the model has diverged")
    return s


def _number(name: str, value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        raise LimitError(f"{name}={value!r} is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise LimitError(f"{name}={value!r} is not a number") from None
    if math.isnan(number):
        raise LimitError(f"{name}=nan is not a number")
    return number


def _whole(name: str, value: Any, least: int, hint: str) -> int:
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number) or number < least:
        wrong = "negative" if number < 0 else "zero" if number == 0 else "not a whole number"
        raise LimitError(f"{name}={value!r} is {wrong}: give a whole number of {least} or more{hint}")
    return int(value)


def _seconds(per: Any) -> float:
    """Length of a time window in seconds."""
    if isinstance(per, str):
        text = "".join(per.split())
        if not _DURATION.fullmatch(text.lstrip("+-")):
            raise LimitError(f"per={per!r} is no length of time: write '30s', '15m', '1h', '1d' or '1h30m'")
        parts = re.findall(rf"({_NUMBER})([dhms])", text)
        # In decimals: 0.1h is 360 seconds and not the neighbour that binary fractions give.
        seconds = float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))
        seconds = -seconds if text.startswith("-") else seconds
    else:
        seconds = per.total_seconds() if isinstance(per, timedelta) else _number("per", per)
    if not (0 < seconds < math.inf):
        raise LimitError(f"per={per!r} is no window: give a finite length above zero, such as '1h'")
    return seconds


def _duration(seconds: float) -> str:
    """Text that :func:`_seconds` reads back as the same number."""
    if seconds != int(seconds) or seconds >= 2**53:
        return f"{seconds!r}s"
    left, text = int(seconds), ""
    for unit, length in _UNITS.items():
        number, left = divmod(left, length)
        text += f"{number}{unit}" if number else ""
    return text


def _read_share(text: str) -> float:
    return float(Decimal(text[:-1]).scaleb(-2)) if text.endswith("%") else float(text)


def _percent(share: float) -> str:
    return f"{Decimal(repr(share)).scaleb(2).normalize():f}%"


def _exact(share: float) -> Fraction:
    """The decimal that was written: 0.29 as 29/100, so that 0.29 of 100 is 29 and not 28.99..."""
    return Fraction(repr(float(share)))


def _floor(share: float, window: int) -> int:
    return math.floor(_exact(share) * window)
