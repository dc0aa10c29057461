"""``recalibrate``: from a bundle and audited pairs to a proposal, and from that to a new bundle."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import l2h
from l2h.audits import AuditPairs, read_audits
from l2h.bundle import CalibrationPart, FilePart, Manifest
from l2h.bundle.manifest import CALIBRATION, HELD_OUT, content_version, read_file, read_files
from l2h.bundle.writing import put_in_place
from l2h.costs import FloatArray
from l2h.errors import L2HError
from l2h.recalibration.fitting import LABELS, fit_heads, input_weights
from l2h.recalibration.measuring import Change, cross_fitted, measure_changes

#: So many pairs with an answer of the server are needed, so many of them of inputs that the device would have kept, and
#: so many that stand for equally many inputs to replace the samples that thresholds are taken from.
PAIRS, AUDITS, _ROWS = 100, 30, 100
#: A device that keeps at most this part of its inputs needs no audits of them.
_HARDLY = 0.05


class RecalibrationError(L2HError, RuntimeError):
    """A bundle that cannot be recalibrated, too few pairs, or a new calibration that is not better than the old one."""


@dataclass(frozen=True)
class Recalibration:
    """A new calibration of a bundle, and what it changes on held-out pairs; :meth:`write` makes the bundle."""

    folder: Path  # of the bundle that it is for
    manifest: Manifest  # of that bundle
    pairs: int  # with an answer of the server
    audits: int  # those of inputs that the device would have kept
    labelled: int  # those whose true class is known
    by_labels: bool  # whether labels judge, or agreement with the server
    platt: tuple[tuple[float, float], ...]  # scale and shift of each answerer
    refitted: tuple[str, ...]  # the answerers whose scale and shift were fitted
    changes: dict[str, Change]  # log_loss, calibration_error and risk
    scores: npt.NDArray[np.float32] | None  # (n, J), the samples of new thresholds; None where the old ones stay
    refusal: str | None  # why it is not better; None where it is
    left_out: tuple[str, ...] = ()  # lines of the audit files that were not used, and why

    def write(self, out: str | Path, *, force: bool = False) -> Manifest:
        """Write the new bundle in one piece, and return its manifest; the models are copied byte for byte.

        Raises:
            RecalibrationError: it is not better than the old calibration.
            BundleError: the old bundle is damaged.
            ExportError: the folder is taken or cannot be written.
        """
        if self.refusal is not None:
            raise RecalibrationError(self.refusal)
        old = self.manifest
        files = read_files(self.folder, old, "device")
        files |= {
            name: read_file(self.folder, old, name) for name in old.files_of("server") if (self.folder / name).exists()
        }
        table, part = dict(old.files), old.calibration
        if self.scores is not None:
            part = CalibrationPart(CALIBRATION if part is None else part.file, len(self.scores))
            saved = io.BytesIO()
            np.savez(saved, scores=self.scores[None])
            files[part.file] = data = saved.getvalue()
            table[part.file] = FilePart(sha256(data).hexdigest(), len(data), "device")
        platt = (self.platt,)
        manifest = replace(
            old,
            version=content_version(table, platt, old.labels),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            l2h=l2h.__version__,
            rejector=replace(old.rejector, platt=platt),
            calibration=part,
            files=table,
        )
        put_in_place(files, manifest, Path(out), force)
        return manifest

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        (old,) = self.manifest.rejector.platt
        names = [answerer.name for answerer in self.manifest.answerers]
        return {
            "bundle": self.manifest.version,
            "pairs": self.pairs,
            "audits": self.audits,
            "labelled": self.labelled,
            "judged_by": "labels" if self.by_labels else "agreement",
            "platt": {
                name: {"before": list(before), "after": list(after), "refitted": name in self.refitted}
                for name, before, after in zip(names, old, self.platt, strict=True)
            },
            "changes": {name: change.as_dict() for name, change in self.changes.items()},
            "threshold_samples": None if self.scores is None else len(self.scores),
            "refusal": self.refusal,
            "left_out": list(self.left_out),
        }


def recalibrate(
    bundle: str | Path, audits: str | Path | Sequence[str | Path], *, since: float | None = None
) -> Recalibration:
    """Fit the calibration of a bundle to audited pairs, and measure it on pairs that it was not fitted on.

    Every fifth of the pairs is judged by what the other four fifths give; the result is fitted on all of them. Each
    pair counts for as many inputs as it stands for. Where 50 pairs of a server or more have labels, its scale and shift
    are fitted too, and labels judge where there are some. Else agreement with the server's answers judges, which cannot
    show that the server itself has become worse.

    Args:
        bundle: its folder; one whose rejector answers for every price.
        audits: folders or files of pairs that were made with this version of the bundle.
        since: leave out pairs from before this time, in seconds since 1970.

    Returns:
        The proposal; its ``refusal`` says why it is not better, if so.

    Raises:
        RecalibrationError: the bundle cannot be recalibrated, or there are too few pairs; says how many are needed.
        AuditError: there are no pairs of this bundle.
        BundleError: the bundle is damaged.

    Example:
        >>> found = recalibrate("bundles/digits", "audits/")              # doctest: +SKIP
        >>> found.changes["log_loss"].after                               # doctest: +SKIP
        0.213
        >>> found.write("bundles/digits-2")                               # doctest: +SKIP
    """
    folder, manifest = Path(bundle), Manifest.read(bundle)
    _require_heads(manifest)
    sources = [audits] if isinstance(audits, str | Path) else list(audits)
    every = read_audits(*sources, bundle=manifest.version)
    if since is not None:
        every = every.rows(every.time >= since)
    (start,) = np.array(manifest.rejector.platt, dtype=np.float64)
    answered = every.rows(every.answered)
    _require_enough(answered)
    counts = np.bincount(answered.by[answered.label >= 0], minlength=len(start))
    servers = [j for j in range(answered.header.local, len(start)) if counts[j] >= LABELS]
    by_labels = bool(servers)
    changes = measure_changes(answered, start, cross_fitted(answered, start, servers), by_labels)
    names = answered.header.answerers
    found = fit_heads(answered, start, servers)
    return Recalibration(
        folder=folder,
        manifest=manifest,
        pairs=len(answered),
        audits=int((~answered.asked).sum()),
        labelled=int((answered.label >= 0).sum()),
        by_labels=by_labels,
        platt=tuple((float(scale), float(shift)) for scale, shift in found),
        refitted=tuple(name for j, name in enumerate(names) if j < answered.header.local or j in servers),
        changes=changes,
        scores=_threshold_scores(every),
        refusal=_turned_around(names, start, found) or _refusal(changes),
        left_out=tuple(map(str, every.left_out)),
    )


def _require_heads(manifest: Manifest) -> None:
    specs = manifest.rejector.specs
    if len(specs) > 1:
        raise RecalibrationError(
            f"{manifest.name} has {len(specs)} rejectors, and pairs are those of one: export it alone, "
            "l2h export --which NUMBER"
        )
    if specs[0].costs is not None:
        raise RecalibrationError(
            f"{manifest.name} has a rejector for one price ({specs[0].costs}), which states no probabilities to "
            "calibrate: train one with the loss 'priced'"
        )


def _require_enough(pairs: AuditPairs) -> None:
    audits = ~pairs.asked
    kept = int(audits.sum())
    # An input that is asked about anyway is among the pairs ten times as often as one that is kept, or always.
    rate = float(np.median(pairs.probability[audits]) if kept else np.min(pairs.probability, initial=1.0) / 10)
    # By the rule of three, no more inputs are kept than this, with 95% confidence, where hardly any audit was drawn.
    most = (kept + 3) / rate
    if len(pairs) >= PAIRS and (kept >= AUDITS or most <= _HARDLY * input_weights(pairs).sum()):
        return
    missing = max(AUDITS - kept, 0 if len(pairs) >= PAIRS else PAIRS - len(pairs))
    raise RecalibrationError(
        f"too few pairs with an answer of the server: {len(pairs)}, of which {kept} are audits of inputs that the "
        f"device would have kept; {PAIRS} are needed, {AUDITS} of them audits. With audit={rate:g} that takes about "
        f"{max(100.0, round(missing / rate, -2)):,.0f} more inputs"
    )


def _turned_around(names: Sequence[str], start: FloatArray, found: FloatArray) -> str | None:
    """Return why a head cannot be used that would be the surer of an answer the less often it is right."""
    turned = [name for name, was, now in zip(names, start[:, 0], found[:, 0], strict=True) if now <= 0 < was]
    if not turned:
        return None
    return (
        f"by these pairs {' and '.join(turned)} would be right the less often, the surer the head is: no scale and "
        "shift mends that. See whether the server still works, such as one that gives a single class, and whether the "
        "labels are right; if both are, train a new rejector"
    )


def _refusal(changes: dict[str, Change]) -> str | None:
    loss, risk = changes["log_loss"], changes["risk"]
    if not loss.interval.below:
        return (
            f"the new calibration is not clearly better: the log-loss on held-out pairs changes by "
            f"{loss.interval.difference:+.4f} ({loss.interval.low:+.4f} to {loss.interval.high:+.4f}); "
            "the bundle is still calibrated, or more pairs are needed"
        )
    if risk.interval.above:
        return f"the new calibration costs more: the risk on held-out pairs changes by {risk.interval.difference:+.4f}"
    return None


def _threshold_scores(pairs: AuditPairs) -> npt.NDArray[np.float32] | None:
    """Return raw scores (n, J) as of n inputs drawn at random, of which bounds on asking may count as independent.

    Of the pairs that stand for fewer inputs only a part is taken, so that all that are left stand for equally many.
    """
    rng, weights = np.random.default_rng(0), input_weights(pairs)
    kept = np.flatnonzero(rng.random(len(pairs)) < weights / weights.max())
    if len(kept) < _ROWS:
        return None
    chosen = np.sort(rng.permutation(kept)[:HELD_OUT])
    return np.ascontiguousarray(pairs.heads[chosen], dtype=np.float32)
