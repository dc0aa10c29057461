"""``export_system``: a fitted system as a bundle."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import l2h
from l2h.bundle import CalibrationPart, FilePart, InputPart, Manifest, RejectorPart
from l2h.bundle.manifest import NAME
from l2h.costs import Costs
from l2h.errors import SettingsError
from l2h.export.classifiers import CLIENT, SERVER
from l2h.export.folder import check_target, put_in_place
from l2h.export.models import REJECTOR, BundleModels, export_models
from l2h.export.quantising import Int8Measurement, int8_rejector

if TYPE_CHECKING:
    from l2h.fitted import FittedSystem

CALIBRATION = "calibration.npz"
#: Held-out scores kept for bounds on asking.
HELD_OUT = 2000


def export_system(
    fitted: FittedSystem,
    folder: str | Path,
    *,
    name: str | None = None,
    costs: Costs | None = None,
    which: int | None = None,
    int8: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    force: bool = False,
) -> Manifest:
    """Write a fitted system as a bundle: ONNX files for the device and the server, and a manifest.

    Every file is run on random samples and compared with its original before anything is written, and the folder
    appears in one piece.

    Args:
        fitted: the system; calibrated, if bounds on asking are to be met on the device.
        folder: must not exist yet, or be empty, or hold a bundle where ``force`` is set.
        name: the model's, also on the wire; that of the data set where None.
        costs: the costs it is made for; those of the training where None. With the loss ``priced`` the device may use
            others at any time.
        which: number of the only rejector to export; all of them where None.
        int8: samples and labels on which an int8 rejector is measured, and from which it takes its ranges; not from the
            test set. It is kept only where it is faster and the system's risk on them no higher.
        force: replace the bundle in the folder.

    Returns:
        The manifest.

    Raises:
        SettingsError: no rejector has this number or these costs, or no address can hold the name.
        ExportError: something cannot be exported or differs from its original, or the folder is taken.
    """
    folder = Path(folder)
    check_target(folder, force)
    name = _model_name(fitted, name)
    chosen, costs = _choose(fitted, costs, which)
    samples = None if int8 is None else fitted.check(*int8)
    with torch.random.fork_rng(devices=[]):
        models = export_models(fitted, chosen)
        rejector, measured = models.on_device(models.rejector), None
        if samples is not None:
            rejector, measured = int8_rejector(fitted, models, chosen, costs, *samples)
    scores = held_out_scores(fitted, chosen)
    files = {
        CALIBRATION: None if scores is None else _as_npz(scores),
        CLIENT: models.client.data,
        REJECTOR: rejector.SerializeToString(),
        SERVER: models.server,
    }
    written = {key: data for key, data in files.items() if data is not None}
    manifest = _manifest(fitted, name, chosen, costs, models, measured, scores, written)
    put_in_place(written, manifest, folder, force)
    return manifest


def held_out_scores(fitted: FittedSystem, chosen: list[int]) -> npt.NDArray[np.float32] | None:
    """Return the scores of the last calibration, (R, n, 2), of at most :data:`HELD_OUT` samples drawn evenly."""
    if fitted.calibration is None:
        return None
    scores = fitted.calibration.held_out.scores[chosen]
    rows = np.unique(np.linspace(0, scores.shape[1] - 1, min(scores.shape[1], HELD_OUT)).round().astype(int))
    return np.ascontiguousarray(scores[:, rows], dtype=np.float32)


def _manifest(
    fitted: FittedSystem,
    name: str,
    chosen: list[int],
    costs: Costs,
    models: BundleModels,
    measured: Int8Measurement | None,
    scores: npt.NDArray[np.float32] | None,
    files: dict[str, bytes],
) -> Manifest:
    table = {
        key: FilePart(sha256(data).hexdigest(), len(data), "server" if key == SERVER else "device")
        for key, data in files.items()
    }
    platt = np.tile([1.0, 0.0], (len(chosen), 2, 1)) if fitted.calibration is None else fitted.calibration.platt[chosen]
    return Manifest(
        name=name,
        version=_version(table, platt),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        l2h=l2h.__version__,
        input=InputPart(fitted.input_shape, fitted.input_dtype),
        classes=fitted.class_names,
        preprocessing="inside",
        client=models.client.part,
        rejector=RejectorPart(
            file=REJECTOR,
            kind=fitted.rejector,
            fused=models.fused,
            int8=measured is not None and measured.kept,
            uses_client=models.uses_client,
            specs=tuple(fitted.specs[r] for r in chosen),
            platt=tuple(((float(a), float(b)), (float(c), float(d))) for (a, b), (c, d) in platt),
            int8_measured=None if measured is None else asdict(measured),
        ),
        calibration=None if scores is None else CalibrationPart(CALIBRATION, scores.shape[1]),
        costs=costs,
        server=models.server_part,
        files=table,
        agreement=models.agreement,
    )


def _as_npz(scores: npt.NDArray[np.float32]) -> bytes:
    out = io.BytesIO()
    np.savez(out, scores=scores)
    return out.getvalue()


def _choose(fitted: FittedSystem, costs: Costs | None, which: int | None) -> tuple[list[int], Costs]:
    """Return the numbers of the rejectors to export and the costs that the bundle is made for."""
    if which is None and costs is None:
        costs = fitted.specs[0].costs
    number, costs = fitted.select(costs, which)
    return list(range(len(fitted.specs))) if which is None else [number], costs


def _version(table: dict[str, FilePart], platt: npt.NDArray[Any]) -> str:
    content = {"files": {name: part.sha256 for name, part in table.items()}, "platt": platt.tolist()}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _model_name(fitted: FittedSystem, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", fitted.dataset).strip("-._")[:64] or "unnamed"
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"name={name!r} cannot be part of an address: at most 128 letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit"
        )
    return name
