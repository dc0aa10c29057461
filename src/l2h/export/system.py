"""``export_system``: a fitted system as a bundle, written beside its place and moved there in one piece."""

import io
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import l2h
from l2h.bundle import CalibrationPart, FilePart, InputPart, Manifest, RejectorPart
from l2h.bundle.manifest import CALIBRATION, HELD_OUT, SERVER_NAME, content_version
from l2h.bundle.parts import NAME
from l2h.bundle.writing import check_target, put_in_place
from l2h.decision import AnyCosts
from l2h.decision.judgement import outcome_costs
from l2h.errors import SettingsError
from l2h.export.classifiers import CLIENT
from l2h.export.models import REJECTOR, bundle_platt, export_models
from l2h.export.quantising import int8_rejector
from l2h.fitted import FittedSystem


def export_system(
    fitted: FittedSystem,
    folder: str | Path,
    *,
    name: str | None = None,
    costs: AnyCosts | None = None,
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
        costs: the costs it is made for, by server where there are several; those of the training where None. With the
            loss ``priced`` the device may use others at any time.
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
    if which is None and costs is None:
        costs = fitted.specs[0].costs
    number, costs = fitted.select(costs, which)
    outcome_costs(fitted.answerers, costs)  # refuses those of other servers
    chosen = list(range(len(fitted.specs))) if which is None else [number]
    samples = None if int8 is None else fitted.check(*int8)
    with torch.random.fork_rng(devices=[]):
        models = export_models(fitted, chosen)
        rejector, measured = models.on_device(models.rejector), None
        if samples is not None:
            rejector, measured = int8_rejector(fitted, models, chosen, costs, *samples)
    scores, saved = held_out_scores(fitted, chosen), io.BytesIO()
    if scores is not None:
        np.savez(saved, scores=scores)
    files = {
        CALIBRATION: None if scores is None else saved.getvalue(),
        models.client.part.file or CLIENT: models.client.data,
        REJECTOR: rejector.SerializeToString(),
        **{server.part.file or "": server.data for server in models.servers.values()},
    }
    written = {key: data for key, data in files.items() if data is not None}
    remote = {server.part.file for server in models.servers.values()}
    table = {
        key: FilePart(sha256(data).hexdigest(), len(data), "server" if key in remote else "device")
        for key, data in written.items()
    }
    platt = bundle_platt(fitted, chosen)
    manifest = Manifest(
        name=name,
        version=content_version(table, platt.tolist(), fitted.labels.values),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        l2h=l2h.__version__,
        input=InputPart(fitted.input_shape, fitted.input_dtype, fitted.image_size),
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
            platt=tuple(tuple((float(scale), float(shift)) for scale, shift in pairs) for pairs in platt),
            int8_measured=None if measured is None else asdict(measured),
        ),
        calibration=None if scores is None else CalibrationPart(CALIBRATION, scores.shape[1]),
        prices=dict(costs) if isinstance(costs, Mapping) else dict.fromkeys(models.servers, costs),
        servers={server: exported.part for server, exported in models.servers.items()},
        files=table,
        agreement=models.agreement,
        columns=fitted.columns,
        labels=fitted.labels.values,
        second_opinion=fitted.second_opinion,
    )
    put_in_place(written, manifest, folder, force)
    return manifest


def held_out_scores(fitted: FittedSystem, chosen: list[int]) -> npt.NDArray[np.float32] | None:
    """Return the scores of the last calibration, (R, n, J), of at most :data:`HELD_OUT` samples drawn evenly."""
    if fitted.calibration is None:
        return None
    scores = fitted.calibration.held_out.scores[chosen]
    if fitted.second_opinion:
        students = np.stack([fitted.held_out_judgement(r).scores[:, 1] for r in chosen])
        scores = np.insert(scores, 1, students, axis=2)
    rows = np.unique(np.linspace(0, scores.shape[1] - 1, min(scores.shape[1], HELD_OUT)).round().astype(int))
    return np.ascontiguousarray(scores[:, rows], dtype=np.float32)


def _model_name(fitted: FittedSystem, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", fitted.dataset).strip("-._")[:64] or "unnamed"
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"name={name!r} cannot be part of an address: at most 128 letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit"
        )
    longest = max((server.name for server in fitted.servers), key=len)
    if longest != SERVER_NAME and not NAME.fullmatch(f"{name}-{longest}"):
        raise SettingsError(f"name={name!r} and the server's {longest!r} are too long together: at most 127 characters")
    return name
