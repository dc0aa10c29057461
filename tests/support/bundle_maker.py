"""Small systems of every kind around digits and a table, and what their bundles should answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clouds import NetWithFeatures, samples, scores
from manifest_digest import with_digest
from torch import nn

import l2h
from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.bundle.sessions import exported_client, file_run
from l2h.decision import RejectorSpec

PRICES = [Costs(c_e=c_e, c_1=c_1) for c_1 in (1.0, 1.25) for c_e in (0.0, 0.05, 0.1, 0.3)]
TRAINED_FOR = [Costs(c_e=0.05), Costs(c_e=0.2, c_1=1.5)]
SPECS = [RejectorSpec("shifted", costs) for costs in TRAINED_FOR]


TABLE, TABLE_CAL, TABLE_TEST = samples(240, 1), samples(300, 2), samples(400, 3)


def tree() -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0).fit(*samples(20, 5))


def onnx_file(folder: Path) -> Path:
    """An ONNX client whose scores are probabilities, under names of its own."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    X, y = samples(14, 6)
    model = to_onnx(LogisticRegression().fit(X, y), X[:1], options={"zipmap": False}, target_opset=18)
    path = folder / "legacy.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """To train on, to calibrate on, to test on: uint8 (n, 1, 8, 8)."""
    data = l2h.load_dataset("digits", seed=0)
    X, y = data.X_train, data.y_train
    return (X[:700], y[:700]), (X[700:1100], y[700:1100]), (data.X_test, data.y_test)


def legacy(X: np.ndarray, y: np.ndarray) -> nn.Module:
    """A convolutional client, trained for a moment."""
    torch.manual_seed(3)
    net = l2h.models.build_scaled("lenet5", (1, 8, 8), 10, width=0.5)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    inputs, labels = torch.from_numpy(l2h.classifiers.unit_range(X)), torch.from_numpy(y)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    return net.requires_grad_(False).eval()


def settings(**more: Any) -> Settings:
    server, rejector = StageSettings(epochs=5, batch=32, lr=5e-3), StageSettings(epochs=6, batch=64, lr=3e-3)
    plain = {"folds": 2, "copies": 1, "device": "cpu", "seed": 1, "threads": 1}
    return Settings(**{"server": server, "rejector": rejector, **plain, **more})


def on_table(client: Any, rejector: Any = "attached", server: Any = "mlp", **more: Any) -> HelpSystem:
    """A system on the table, fitted and calibrated in a fraction of a second."""
    options = {"hidden": (16,)} if server == "mlp" else None
    fit = {name: more.pop(name) for name in ("specs",) if name in more}
    system = HelpSystem(client, server, rejector, settings=settings(**more), dataset="table", server_options=options)
    return system.fit(*TABLE, **fit).calibrate(*TABLE_CAL)


def on_digits() -> HelpSystem:
    """Images, a convolutional client with features, an attached rejector with a student."""
    train, calibration, _ = digits()
    client = legacy(*train)
    system = HelpSystem(
        client,
        "lenet5",
        settings=settings(),
        dataset="digits",
        rejector_options={"width": 1, "hidden": 16},
    )
    return system.fit(*train).calibrate(*calibration)


KINDS: dict[str, Callable[[Path], HelpSystem]] = {
    "fused": lambda _: on_digits(),
    "separate": lambda _: on_table(NetWithFeatures(), "separate"),
    "sklearn": lambda _: on_table(tree()),
    "onnx": lambda folder: on_table(str(onnx_file(folder))),
    "callable": lambda _: on_table(scores),
    "several": lambda _: on_table(NetWithFeatures(), loss="shifted", specs=SPECS),
}


def client_of(kind: str) -> Any:
    """What must be given to the bundle of a kind."""
    return scores if kind == "callable" else None


def inputs_of(kind: str) -> np.ndarray:
    return digits()[2][0] if kind == "fused" else TABLE_TEST[0]


def assert_answers_as(
    system: HelpSystem, device: DeviceBundle, server: ServerBundle, X: np.ndarray, costs: Costs
) -> None:
    """The bundle's halves together give every label and every decision of the system."""
    answers = system.predict(X, costs)
    which, used = device.which(costs)
    assert used == costs
    label, judgement = device.judge(X, which)
    remote = judgement.remote(costs)
    part = device.manifest.client
    if part.file is not None:
        model = file_run((device.folder / part.file).read_bytes(), part)
        alone = exported_client(model, part, len(device.classes), device.labels)
        np.testing.assert_array_equal(alone(device.check(X))[0], label)
    # Float32 adds up in another order there: a saving of nothing may have either sign.
    clear = np.abs(judgement.saving(costs)) > 1e-5
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(remote[clear], (answers.source == "remote")[clear])
    joint = np.where(remote, server.run(X).argmax(axis=1), label)
    np.testing.assert_array_equal(joint[clear], answers.label[clear])


def copied(bundle: Path, to: Path) -> Path:
    shutil.copytree(bundle, to)
    return to


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest as a hand would that also writes the digest anew."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(with_digest(values))
