"""A folder of photos of any size, from ``l2h train --size`` to ``l2h ask photo.jpg``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, call, undrawn
from PIL import Image

from l2h.data import read_images


@pytest.mark.usefixtures("no_cache")
@pytest.mark.long
def test_photos_of_any_size_go_all_the_way(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, tint in (("dusk", (200, 80, 60)), ("sea", (40, 90, 190))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(40):
            pixels = np.clip(np.array(tint) + rng.normal(0, 60, (20 + i, 60 - i, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.jpg")
    run, bundle, photo = tmp_path / "run", tmp_path / "bundle", tmp_path / "photos" / "sea" / "3.jpg"
    models = ["--client", "tree", "--client-share", "0.5", "--server", "mlp"]
    with undrawn():
        result = call("train", "--data", tmp_path / "photos", "--size", "12", *models, *QUICK, "--out", run)
        assert result.status == 0, result.err
        again = call("evaluate", run, "--data", tmp_path / "photos", "--json")
    assert again.status == 0, again.err
    assert json.loads((run / "config.json").read_text())["training"]["size"] == 12
    assert call("export", run, "--out", bundle).status == 0
    assert json.loads((bundle / "manifest.json").read_text())["input"] == {
        "shape": [3, 12, 12],
        "dtype": "uint8",
        "size": 12,
    }
    np.save(tmp_path / "same.npy", read_images([photo], size=12))
    answers = [
        call("ask", bundle, file, "--local-only", "--json").json()["answers"] for file in (photo, tmp_path / "same.npy")
    ]
    assert answers[0][0]["class"] == answers[1][0]["class"]
    assert answers[0][0]["expected_saving"] == pytest.approx(answers[1][0]["expected_saving"])


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L2H_CACHE", str(tmp_path / "cache"))
