"""The bundle in service: how another one takes over while answers are under way, and when it is taken back."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from l2h.bundle import BundleError, DeviceBundle, Manifest
from l2h.bundle.signing import read_verify_key
from l2h.costs import FloatArray
from l2h.decision import AnyCosts, AnyLimit, Judgement, KeptLimiters, Policy, Terms
from l2h.edge.options import EdgeSettingsError
from l2h.errors import L2HError, NotFittedError
from l2h.limits import Drift, DriftMonitor, threshold_for
from l2h.telemetry import event

log = logging.getLogger("l2h.edge")
#: For so many inputs a new bundle is on trial, and over so many of them its drift is watched.
_TRIAL, _WINDOW = 5000, 500
#: The old bundle is the better one where it is off by less than this part of what the new one is.
_NEARER = 0.5
#: In so many inputs without drift no alarm is raised, with 95% confidence; so many inputs are passed on at a time.
_HORIZON, _BATCH = 20_000, 50
#: What must stay the same while a client runs: its connections, counters and callers rely on it.
_KEPT = ("name", "input", "classes", "labels", "columns", "answerers")


@dataclass(frozen=True)
class LiveBundle:
    """A bundle with what follows from it; a call takes one of these and keeps it to its end."""

    bundle: DeviceBundle
    policy: Policy
    terms: Terms
    #: Watches the inputs of calls at these prices; None without calibration samples, or where a limiter watches.
    watch: DriftAlarm | None = None

    def watched(self) -> LiveBundle:
        """Return the same with a watch that begins now."""
        limited = self.policy.status() is not None
        return replace(self, watch=None if limited else DriftAlarm.of(self, _HORIZON, quiet=False))

    def savings(self, judgement: Judgement) -> FloatArray:
        """Return what asking the best server about each input is expected to save."""
        return np.asarray(self.terms.gains(judgement)[0].max(axis=1))


class BundleService:
    """Holds the bundle in service, and changes it in one step; any thread may call."""

    def __init__(
        self,
        bundle: DeviceBundle,
        limit: AnyLimit | None,
        costs: AnyCosts | None,
        absent: frozenset[str],
        audit: float = 0.0,
    ) -> None:
        self._limit, self._costs, self._absent, self._audit = limit, costs, absent, audit
        self._audited = len(bundle.manifest.servers) - len(absent)
        self._kept: KeptLimiters = {}
        self._lock = threading.Lock()
        self._refused: Manifest | None = None
        self._reloads = 0
        self.live = self._make(bundle)
        self.trial: Trial | None = None

    def terms(self, live: LiveBundle, costs: AnyCosts | None) -> Terms:
        """Return the terms of a call with these prices."""
        return live.terms if costs is None else live.policy.terms(costs, out=self._absent)

    def set_costs(self, costs: AnyCosts | None) -> None:
        """Change the prices of all calls from now on; a trial begins anew."""
        with self._lock:
            self.live = replace(self.live, terms=self.live.policy.settle_on(costs, self._absent)).watched()
            self._costs = costs
            if self.trial is not None:
                old = self.trial.old
                self.trial = Trial.of(replace(old, terms=self.terms(old, costs)), self.live)

    def reload(self, bundle: str | Path | DeviceBundle | None) -> bool:
        """Put another bundle into service, None for what the folder holds now; see ``EdgeClient.reload``."""
        with self._lock:
            before = self.live.bundle
            if isinstance(bundle, DeviceBundle):
                found = bundle
                if before.verify_key is not None and found.verify_key != before.verify_key:
                    raise BundleError("the bundle was loaded without the key of this client: give its folder")
            else:
                folder = before.folder if bundle is None else bundle
                if bundle is None and Manifest.read(folder, before.verify_key) in (before.manifest, self._refused):
                    return False
                found = before.successor(folder)
            _require_same_system(before.manifest, found.manifest, found.folder)
            live = self._make(found)
            self.trial, self.live = Trial.of(self.live, live), live
            self._reloads += 1
        versions = found.manifest.version, before.manifest.version
        what = event("bundle_taken", version=versions[0], before=versions[1])
        log.info("bundle %s is in service, %s was", *versions, extra=what)
        return True

    def observe(self, trial: Trial, live: LiveBundle, X: Any, judgement: Judgement) -> None:
        """Show inputs to a trial, and end it where it is over or the new bundle is worse than the old one."""
        if live is not trial.new:
            return
        verdict = trial.observe(X, judgement)
        # While another bundle is being loaded, no call waits for that: the next one looks again.
        if verdict is None or not self._lock.acquire(blocking=False):
            return
        try:
            if self.trial is trial:
                self.trial = None
                if not verdict:
                    self._take_back(trial)
        finally:
            self._lock.release()

    def _take_back(self, trial: Trial) -> None:
        old = trial.old
        new_version, old_version = (each.bundle.manifest.version for each in (trial.new, old))
        try:
            self.live = replace(old, terms=old.policy.settle_on(self._costs, self._absent)).watched()
        except L2HError as error:
            what = event("bundle_stuck", version=new_version, error=str(error))
            log.warning("bundle %s drifts, and cannot be taken back: %s", new_version, error, extra=what)
            return
        self._refused = trial.new.bundle.manifest
        what = event("bundle_rolled_back", version=old_version, refused=new_version, reason=trial.reason)
        words = "bundle %s is taken back, %s is in service again: %s"
        log.warning(words, new_version, old_version, trial.reason, extra=what)

    def stats(self) -> dict[str, Any]:
        """Return the counters of reloads, and drift."""
        refused, live = self._refused, self.live
        return {
            "drift": _drift_of(live.policy.status()) if live.watch is None else live.watch.drift,
            "bundle": live.bundle.manifest.version,
            "reloads": self._reloads,
            "rolled_back": None if refused is None else refused.version,
        }

    def watch(self, seconds: float, ended: threading.Event) -> None:
        """Look for a new bundle in the folder every so many seconds, in a thread of its own until ``ended`` is set."""
        threading.Thread(
            target=_watch, args=(weakref.ref(self), seconds, ended), name="l2h-edge-watch", daemon=True
        ).start()

    def _make(self, bundle: DeviceBundle) -> LiveBundle:
        every_price = bundle.manifest.rejector.specs[0].costs is None
        policy = Policy(
            bundle.which,
            every_price,
            bundle.held_out,
            self._limit,
            answerers=bundle.answerers,
            kept=self._kept,
            version=bundle.manifest.version,
            audit=self._audit,
            audited=self._audited,
        )
        try:
            return LiveBundle(bundle, policy, policy.terms(self._costs, out=self._absent)).watched()
        except NotFittedError as error:
            raise BundleError(str(error)) from error


class Trial:
    """A new bundle beside the old one, on the same inputs: is one further from what its calibration promised?

    Each has the drift alarm of its own calibration samples. The new one is worse where its alarm is raised, and the
    old one is less than half as far from its calibrated share.
    """

    def __init__(self, old: LiveBundle, new: LiveBundle, alarms: tuple[DriftAlarm | None, DriftAlarm]) -> None:
        self.old, self.new = old, new
        self.reason = ""
        self._old, self._new = alarms
        self._lock = threading.Lock()
        self._left = _TRIAL
        self._alike = _same_models(old.bundle.manifest, new.bundle.manifest) and old.terms.which == new.terms.which

    @classmethod
    def of(cls, old: LiveBundle, new: LiveBundle) -> Trial | None:
        """Return the trial of a new bundle; None where it has no calibration samples to be compared with."""
        alarm = DriftAlarm.of(new)
        return None if alarm is None else cls(old, new, (DriftAlarm.of(old), alarm))

    def observe(self, X: Any, judgement: Judgement) -> bool | None:
        """Count inputs: False where the new bundle is worse, True where the trial is over, None while it goes on."""
        before = None if self._old is None else self._judged_by_old(X, judgement)
        with self._lock:
            self._left -= len(judgement)
            self._new.observe(self.new.savings(judgement))
            if self._old is not None and before is not None:
                self._old.observe(self.old.savings(before))
            # Where the traffic itself has changed, both are off alike, and there is no point in going back.
            alike = self._old is not None and self._old.distance > _NEARER * self._new.distance
            if self._new.drift is None or alike:
                return True if self._left <= 0 else None
            self.reason = str(self._new)
            return False

    def _judged_by_old(self, X: Any, judgement: Judgement) -> Judgement | None:
        bundle, which = self.old.bundle, self.old.terms.which
        if self._alike:  # only the calibration differs, and nothing is run twice
            return bundle.judgement(judgement.scores, which)
        try:
            return bundle.judge(X, which)[1]
        except L2HError:  # such as scores that are not finite
            return None


class DriftAlarm:
    """Is the share of inputs above a bundle's cut still that of its calibration samples?

    The cut is the one of its limit where that is a share, else the saving from which on asking pays. Any thread may
    call; :meth:`add` and :meth:`extend` cost the call of an input next to nothing.
    """

    def __init__(self, live: LiveBundle, held: Judgement, horizon: int, quiet: bool) -> None:
        saving = live.savings(held)
        shares = [limit.fraction for limit in live.policy.limits.values() if limit.fraction is not None]
        # What saves nothing is asked about, too.
        self._cut = threshold_for(saving, min(shares)).value if shares else math.nextafter(0.0, -math.inf)
        rate = float((saving > self._cut).mean())
        self._monitor = DriftMonitor(rate, len(saving), _WINDOW, horizon=horizon, quiet=quiet)
        self._lock = threading.Lock()
        self._recent: list[bool] = []  # not counted yet

    @classmethod
    def of(cls, live: LiveBundle, horizon: int = _TRIAL, quiet: bool = True) -> DriftAlarm | None:
        """Return the alarm of a bundle; None where it has no calibration samples."""
        held = live.bundle.held_out(live.terms.which)
        return None if held is None else cls(live, held, horizon, quiet)

    def observe(self, saving: FloatArray) -> None:
        """Count inputs now, by what asking about them would save."""
        self._recent.extend((saving > self._cut).tolist())
        self._pass_on()

    def extend(self, saving: FloatArray) -> None:
        """Count inputs soon, by what asking about them would save."""
        self._recent.extend((saving > self._cut).tolist())
        if len(self._recent) >= _BATCH:
            self._pass_on()

    def add(self, asks: bool) -> None:
        """Count one input soon, by whether asking about it pays, where there is no limit."""
        self._recent.append(asks)
        if len(self._recent) >= _BATCH:
            self._pass_on()

    @property
    def drift(self) -> Drift | None:
        """Which way the share is out of its band."""
        return self._monitor.drift

    @property
    def distance(self) -> float:
        """How far the share of the recent inputs is from the calibrated one."""
        return abs((self._monitor.observed or 0.0) - self._monitor.rate)

    def __str__(self) -> str:
        observed, rate = self._monitor.observed or 0.0, self._monitor.rate
        return f"{observed:.1%} of the recent inputs are worth asking about, and {rate:.1%} of its calibration samples"

    def _pass_on(self) -> None:
        with self._lock:
            taken = self._recent[:]
            del self._recent[: len(taken)]
            for one in taken:
                self._monitor.observe(one)


def load_bundle(
    bundle: str | Path | DeviceBundle, client: Callable[..., Any] | None, verify_key: str | Path | bytes | None
) -> DeviceBundle:
    """Return a bundle with which a client begins."""
    if not isinstance(bundle, DeviceBundle):
        return DeviceBundle(bundle, client=client, verify_key=verify_key)
    if verify_key is not None and bundle.verify_key != read_verify_key(verify_key):
        raise EdgeSettingsError("verify_key= goes with a folder: of a loaded bundle, DeviceBundle(..., verify_key=...)")
    return bundle


def _watch(service: weakref.ref[BundleService], seconds: float, ended: threading.Event) -> None:
    said = ""
    while not ended.wait(seconds):
        found = service()
        if found is None:
            return
        try:
            found.reload(None)
            said = ""
        except L2HError as error:
            # A bundle that is being copied is not whole yet: the old one stays, and the next look may find it so.
            if str(error) != said:
                log.warning(
                    "the new bundle is not taken over: %s", error, extra=event("bundle_refused", error=str(error))
                )
            said = str(error)
        del found


def _drift_of(status: dict[str, Any] | None) -> Drift | None:
    """Return the drift that a limiter sees, of several by name the first that sees any."""
    if not status or "drift" in status:
        return status["drift"] if status else None
    return next((each["drift"] for each in status.values() if each["drift"]), None)


def _require_same_system(before: Manifest, now: Manifest, folder: Path) -> None:
    """Refuse a bundle that the callers or the connections of a running client do not fit."""
    for what in _KEPT:
        if getattr(before, what) != getattr(now, what):
            raise BundleError(f"{folder} has {what} other than the bundle in service: make a new client for it")
    if [part.gives for part in before.servers.values()] != [part.gives for part in now.servers.values()]:
        raise BundleError(f"{folder} has servers that answer in another form: make a new client for it")


def _same_models(before: Manifest, now: Manifest) -> bool:
    """Return whether two bundles run the same files on the device; their calibration may differ."""

    def hashes(manifest: Manifest) -> dict[str, str]:
        own = manifest.calibration and manifest.calibration.file
        return {name: part.sha256 for name, part in manifest.files_of("device").items() if name != own}

    return before.client.file is not None and hashes(before) == hashes(now)
