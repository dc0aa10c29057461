"""A small system on the handwritten digits, as a bundle."""

from __future__ import annotations

from pathlib import Path

import l2h
from l2h import HelpSystem, Settings, StageSettings
from l2h.models import build_scaled


def export_digits(folder: Path) -> None:
    """A LeNet-5 of no training as the client, one trained for two epochs as the server: they differ on most inputs."""
    import torch

    data = l2h.load_dataset("digits")
    torch.manual_seed(0)
    client = build_scaled("lenet5", data.input_shape, data.num_classes).eval()
    stage = StageSettings(epochs=2, batch=64)
    settings = Settings(server=stage, rejector=stage, honest="holdout", device="cpu", threads=1)
    options = {"width": 0.5, "hidden": 16}
    system = HelpSystem(
        client, "lenet5", settings=settings, class_names=data.class_names, dataset="digits", rejector_options=options
    )
    system.fit(data.X_train[:600], data.y_train[:600]).calibrate(data.X_train[600:900], data.y_train[600:900])
    system.export(folder)
