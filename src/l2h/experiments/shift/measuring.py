"""What a run does on shifted traffic: risk, how often it asks, whether its limits hold, when the drift alarm comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from l2h.costs import BoolArray, FloatArray
from l2h.data.corruptions import CORRUPTIONS
from l2h.data.dataset import subset
from l2h.decision import AnyCosts, Judgement, Proposal, Terms
from l2h.errors import RunError, SettingsError
from l2h.experiments.evaluating import require_seeds
from l2h.experiments.finished import Asking, FinishedRun, open_run
from l2h.experiments.shift.rows import Row
from l2h.experiments.shift.traffic import CLEAN, OTHER, InputStream, Shift, possible_shifts, shifted
from l2h.limits import DriftMonitor, RateLimit, Threshold, binomial_cdf, threshold_for
from l2h.metrics import AnswererChoice
from l2h.system import HelpSystem
from l2h.system.steps import make_policy

log = logging.getLogger("l2h")
#: The limits that are compared where none are named: a calibrated share, a hard cap, a tracked share.
LIMITS = ("20%@95%", "20%/1000", "20%+-50")
#: Of the course of a stream: inputs of each of its three parts, over how many the share is taken, and every how many.
PART, OVER, EVERY = 2000, 200, 50
_SURE = 0.95


@dataclass(frozen=True)
class ShiftStudy:
    """Which shifts are measured, and under which conditions."""

    shifts: tuple[Shift, ...] = ()  # none: all that the inputs can take
    limits: tuple[RateLimit, ...] = tuple(map(RateLimit.parse, LIMITS))
    data: str | None = None  # a data set other than the run's
    test: str | None = None  # its test part, where that is a file of its own
    target: str | None = None  # the column of a table that holds the labels; None: as in the run
    others: tuple[str, ...] = ()  # data sets that are a shift each
    c_e: float | None = None  # prices; None: the run's
    c_1: float | None = None
    samples: int | None = None  # the most test samples that are used; None: all
    course: Shift | None = None  # the shift in the middle of the course; None: a strong one of those measured
    server_run: Path | None = None  # the run of a server that was trained by itself

    def __post_init__(self) -> None:
        for limit in self.limits:
            if limit.per is not None:
                raise SettingsError(f"--limit {limit}: a number in a time; a shift is over inputs: give a share")


def measure_shifts(
    folders: Sequence[Path], study: ShiftStudy, told: Callable[[int, int], None], asking: Asking | None = None
) -> tuple[list[Row], list[Row]]:
    """Return the rows of every run, shift and limit, and the courses; ``told`` is told how many shifts are done."""
    if len(folders) > 1:
        require_seeds(folders)
    rows: list[Row] = []
    courses: list[Row] = []
    for number, folder in enumerate(folders):
        run = open_run(folder, study.server_run, asking)

        def tell(done: int, total: int, before: int = number) -> None:
            told(before * total + done, len(folders) * total)

        with _quiet_limits():
            found = measure_run(run, study, tell)
        rows += found[0]
        courses += found[1]
    return rows, courses


def measure_run(run: FinishedRun, study: ShiftStudy, told: Callable[[int, int], None]) -> tuple[list[Row], list[Row]]:
    """Return the rows of one run, and the course of its limits while a shift comes and goes."""
    fitted, dataset = run.system.require_fitted(), run.dataset(study.data, study.test, study.target)
    if fitted.calibration is None:
        raise RunError(f"{run.folder} is not calibrated: l2h calibrate {run.folder}")
    which, costs = fitted.select(run.costs(study.c_e, study.c_1) if fitted.specs[0].costs is None else None, None)
    X, y = fitted.check(dataset.X_test, dataset.y_test)
    chosen = subset(len(y), study.samples, 0)
    X, y = (X, y) if chosen is None else (X[chosen], y[chosen])
    possible = possible_shifts(X, bool(run.system.remote_servers))
    shifts = list(study.shifts) or possible
    for shift in shifts:
        if shift not in possible and shift.kind in CORRUPTIONS and not run.system.remote_servers:
            shape = f"{X.dtype} of shape {tuple(X.shape[1:])}"
            raise RunError(f"--shift {shift} is for images of 8 bits; the inputs of {run.folder} are {shape}")
    course = study.course or _strongest(shifts, possible)
    seed = fitted.settings.seed
    known: Row = {"data": dataset.name, "samples": len(y), "seed": seed}
    total = 1 + len(shifts) + len(study.others)
    told(0, total)
    clean, rows, courses = InputStream.of(run.system, which, X, y), [], []
    judge = ShiftJudge(run.system, which, costs, seed)
    streams = shifted([Shift(CLEAN), *shifts], clean, run.system, which, X, seed)
    for done, (shift, traffic) in enumerate(streams, start=1):
        rows += [known | row for row in judge.rows(shift, traffic, study.limits)]
        told(done, total)
    for done, source in enumerate(study.others, start=2 + len(shifts)):
        other = run.dataset(source, None, study.target)
        own = InputStream.of(run.system, which, *fitted.check(other.X_test, other.y_test)).streamed(seed)
        rows += [
            known | {"samples": own.distinct} | row for row in judge.rows(Shift(OTHER, 0, source), own, study.limits)
        ]
        told(done, total)
    if course is not None:
        ((_, changed),) = shifted([course], clean, run.system, which, X, seed)
        parts = [clean.streamed(seed, PART), changed.streamed(seed + 1, PART), clean.streamed(seed + 2, PART)]
        courses = [known | row for limit in study.limits for row in judge.course(course, parts, limit)]
    return rows, courses


@dataclass(frozen=True)
class ShiftJudge:
    """Judges the traffic of one run at one price."""

    system: HelpSystem
    which: int
    costs: AnyCosts
    seed: int

    def rows(self, shift: Shift, traffic: InputStream, limits: Sequence[RateLimit]) -> list[Row]:
        """Return a row for the run at its price, and one per limit without prices."""
        remote = [one.remote for one in traffic.judgement.answerers]
        never, always = (self._losses(traffic, np.full(len(traffic), side)) for side in (False, True))
        of_shift = {
            "shift": shift.source or shift.kind,
            "strength": shift.strength,
            "client": traffic.right[:, 0].mean(),
            "server": traffic.right[:, remote.index(True)].mean(),
            "never": never.mean(),
            "always": always.mean(),
            "best_cut": _best_cut(traffic.judgement.saving(self.costs), never, always),
            "again": self._calibrated_again(traffic),
        }
        return [of_shift | self._row(traffic, limit) for limit in (None, *limits)]

    def course(self, shift: Shift, parts: Sequence[InputStream], limit: RateLimit) -> list[Row]:
        """Return how often was asked lately, at every 50th input of a stream whose middle part is shifted."""
        traffic = InputStream.joined(parts)
        terms, proposal, choice = self._decide(traffic, limit)
        asked = np.concatenate([[0], np.cumsum(choice.remote)])
        ends = np.arange(EVERY, len(traffic) + 1, EVERY)
        begins = np.maximum(0, ends - OVER)
        share = (asked[ends] - asked[begins]) / (ends - begins)
        cut = self._cut(terms, limit)
        monitor = DriftMonitor(cut.above, cut.samples)
        alarms = [monitor.observe(exceeds) or "" for exceeds in (proposal.saving > cut.value).tolist()]
        return [
            {"shift": str(shift), "limit": str(limit), "input": int(end), "asked": one, "alarm": alarms[end - 1]}
            for end, one in zip(ends.tolist(), share.tolist(), strict=True)
        ]

    def _row(self, traffic: InputStream, limit: RateLimit | None) -> Row:
        terms, proposal, choice = self._decide(traffic, limit)
        row: Row = {
            "limit": "" if limit is None else str(limit),
            "asked": choice.reject_rate,
            "accuracy": choice.accuracy,
            "risk": choice.risk(self.costs),
        }
        if limit is None:
            held = terms.gains(self.system.require_fitted().held_out_judgement(self.which))[0].max(axis=1) >= 0
            alarm = _first_alarm(proposal.wanted, float(held.mean()), len(held))
            return row | alarm | {"broken": ""}
        cut = self._cut(terms, limit)
        alarm = _first_alarm(proposal.saving > cut.value, cut.above, cut.samples)
        return row | alarm | {"broken": int(_is_broken(limit, choice.reject_rate, traffic))}

    def _losses(self, traffic: InputStream, remote: BoolArray) -> FloatArray:
        """Return what each input costs where these are asked about, by the best answerer of its side."""
        return traffic.chosen(traffic.judgement.choose(self.costs, remote)).losses(self.costs)

    def _calibrated_again(self, traffic: InputStream) -> float | None:
        """Return the risk with heads that are calibrated on one half of these samples and judged on the other.

        None where a student may answer: its calibration needs more than its answers.
        """
        fitted, judgement = self.system.require_fitted(), traffic.judgement
        if fitted.second_opinion or judgement.probability is None:
            return None
        order = np.random.default_rng(self.seed).permutation(traffic.sample.max() + 1)
        first = order[traffic.sample] % 2 == 0
        losses = []
        for learnt, judged in ((first, ~first), (~first, first)):
            spec, own = fitted.specs[self.which], traffic.rows(np.flatnonzero(judged))
            platt = fitted.method.fit_platt(spec, judgement.scores[learnt], traffic.right[learnt])
            heads = Judgement.from_heads(own.judgement.scores, platt, judgement.answerers)
            anew = replace(own, judgement=heads)
            losses.append(self._losses(anew, heads.remote(self.costs)))
        return float(np.concatenate(losses).mean())

    def _decide(self, traffic: InputStream, limit: RateLimit | None) -> tuple[Terms, Proposal, AnswererChoice]:
        fitted = self.system.require_fitted()
        policy = make_policy(fitted, limit, None, {})
        terms = policy.terms(self.costs if limit is None or fitted.specs[0].costs else None, self.which)
        proposal = policy.propose(traffic.judgement, terms, self.seed)
        choice, _ = policy.permit(proposal, [len(traffic)] * len(fitted.servers))
        return terms, proposal, traffic.chosen(terms.column(proposal, choice))

    def _cut(self, terms: Terms, limit: RateLimit) -> Threshold:
        """Return the calibrated cut that drift is measured against, as a limiter does it."""
        assert limit.fraction is not None
        if terms.threshold is not None:
            return terms.threshold
        gain, _ = terms.gains(self.system.require_fitted().held_out_judgement(self.which))
        return threshold_for(gain.max(axis=1), limit.fraction)


def _first_alarm(exceeds: BoolArray, rate: float, samples: int) -> Row:
    """Return the first alarm of drift on a stream, and after how many inputs it came."""
    monitor = DriftMonitor(rate, samples)
    for seen, one in enumerate(exceeds.tolist(), start=1):
        if monitor.observe(one) is not None:
            return {"alarm": monitor.drift, "alarm_after": seen}
    return {"alarm": "", "alarm_after": ""}


def _is_broken(limit: RateLimit, asked: float, traffic: InputStream) -> bool:
    """Return whether more was asked than a limit lets: at all, or of a calibrated share more than by chance.

    By chance: as many of so many samples would exceed the share with a probability below 0.05 if it were met.
    """
    assert limit.fraction is not None
    if limit.at_run_time:
        return round(asked * len(traffic)) > limit.most(len(traffic))
    n = min(traffic.distinct, len(traffic))
    most = int(np.searchsorted(binomial_cdf(n, limit.fraction), _SURE)) if 0 < limit.fraction < 1 else limit.most(n)
    return round(asked * n) > most


def _best_cut(saving: FloatArray, never: FloatArray, always: FloatArray) -> float:
    """Return the lowest risk of any one cut on the expected saving, by somebody who knows every outcome."""
    order = np.argsort(-saving, kind="stable")
    changed = np.concatenate([[0.0], np.cumsum((always - never)[order])])
    possible = np.concatenate([[True], np.diff(saving[order]) < 0, [True]])
    return float(never.mean() + changed[possible].min() / len(saving))


def _strongest(shifts: Sequence[Shift], possible: Sequence[Shift]) -> Shift | None:
    """Return the shift of the course: least contrast where that is measured, else the last that is measured."""
    known = [shift for shift in shifts if shift in possible] or [*possible]
    return next((one for one in known if one == Shift("contrast", 5)), known[-1] if known else None)


@contextmanager
def _quiet_limits() -> Iterator[None]:
    """Keep the alarms of hundreds of streams out of the log: they are results here."""
    limits = logging.getLogger("l2h.limits")
    before = limits.level
    limits.setLevel(logging.ERROR)
    try:
        yield
    finally:
        limits.setLevel(before)
