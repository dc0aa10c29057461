"""Running ``l2h paper``, and counting its figures again from the passes it keeps, with numpy alone."""

from __future__ import annotations

import csv
import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import numpy as np
import numpy.typing as npt
from commands import Result

Array = npt.NDArray[Any]


def call(*arguments: object) -> Result:
    """``l2h paper ...`` in this process."""
    return commands.call("paper", *arguments)


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """``l2h paper ...`` as a real process in ``folder``."""
    return commands.start("paper", *arguments, folder=folder)


def execute(folder: Path, *arguments: object) -> Result:
    """The same, to its end."""
    return commands.execute("paper", *arguments, folder=folder)


def written(folder: Path) -> dict[str, int]:
    """When each training that is kept was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "passes").iterdir()}


def rows_of(path: Path) -> list[dict[str, str]]:
    """A table for spreadsheets."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float | None:
    """A field of such a table; None where it is empty."""
    return float(text) if text else None


@dataclass(frozen=True)
class Kept:
    """A pass as it lies in its file."""

    arrays: dict[str, Array]
    specs: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Kept:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        return cls(arrays, json.loads(str(arrays.pop("meta")))["specs"])

    @property
    def y(self) -> Array:
        return self.arrays["test_y"]

    @property
    def client(self) -> Array:
        """Whether the client is right on each test sample."""
        return np.asarray(self.arrays["test_client_label"] == self.y)

    @property
    def server(self) -> Array:
        """Whether the server is."""
        return np.asarray(self.arrays["test_server_label"] == self.y)

    def place(self, loss: str, c_e: float, c_1: float, sync: str = "1") -> int:
        """Of the rejector that is asked at these prices."""
        for i, spec in enumerate(self.specs):
            if spec["loss"] == loss == "priced":
                return i
            if spec["loss"] == loss and spec["costs"] == {"c_e": c_e, "c_1": c_1} and str(spec["sync"]) == sync:
                return i
        raise AssertionError(f"no rejector for {loss}, c_1 = {c_1}, c_e = {c_e}, S = {sync}")

    def sent(self, loss: str, c_e: float, c_1: float, sync: str = "1", part: str = "test") -> Array | None:
        """What goes: by priced heads where the expected cost of asking is no higher, else unless r1 > r2."""
        scores = self.arrays[f"{part}_scores"][self.place(loss, c_e, c_1, sync)].astype(np.float64)
        if not np.isfinite(scores).all():
            return None
        first, second = scores.T
        return 1 - first >= c_e + c_1 * (1 - second) if loss == "priced" else ~(first > second)

    def most(self, share: float) -> Array:
        """What goes where at most a share may: the most to gain first, the line drawn on the calibration samples."""
        q_m, q_e = self.arrays["calibration_scores"][0].astype(np.float64).T
        line = np.sort(q_e - q_m)[::-1][math.ceil(share * len(q_m)) - 1]
        q_m, q_e = self.arrays["test_scores"][0].astype(np.float64).T
        return np.asarray(q_e - q_m > line)

    def figures(self, loss: str, c_e: float, c_1: float, sync: str = "1") -> dict[str, float | None]:
        """Share sent, joint accuracy and risk; nothing where the rejector diverged."""
        sent = self.sent(loss, c_e, c_1, sync)
        if sent is None:
            return dict.fromkeys(("sent", "accuracy", "risk"))
        right = np.where(sent, self.server, self.client)
        # One sample after the other, as the loss is written.
        outcomes = zip(self.client, self.server, sent, strict=True)
        paid = [c_e + c_1 * (1 - int(e)) if go else 1.0 - int(m) for m, e, go in outcomes]
        return {"sent": float(sent.mean()), "accuracy": float(right.mean()), "risk": sum(paid) / len(paid)}

    def never(self) -> float:
        """Risk of never asking."""
        return float(1 - self.client.mean())

    def always(self, c_e: float, c_1: float) -> float:
        """Risk of always asking."""
        return float(c_e + c_1 * (1 - self.server.mean()))


def assert_same_passes(one: Path, other: Path, names: Sequence[str]) -> None:
    """The same trainings, to the bit; NaN where a rejector diverged."""
    for name in names:
        a, b = Kept.read(one / "passes" / name), Kept.read(other / "passes" / name)
        assert a.specs == b.specs
        assert a.arrays.keys() == b.arrays.keys()
        for key, value in a.arrays.items():
            assert np.array_equal(value, b.arrays[key], equal_nan=value.dtype.kind == "f"), (name, key)


def write_images(path: Path, seed: int, *, train: int = 200, test: int = 200) -> Path:
    """Ten classes of 3x32x32 images, each a pattern of its own under noise; no two images are equal."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (10, 3, 32, 32))
    arrays = {}
    for part, n in (("train", train), ("test", test)):
        y = np.arange(n) % 10
        noisy = 0.6 * patterns[y] + 50 + rng.normal(0, 40, (n, 3, 32, 32))
        arrays |= {f"X_{part}": np.clip(noisy, 0, 255).astype(np.uint8), f"y_{part}": y}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
