"""Every named network says the same through onnxruntime, at any batch size."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from l2h.models import InputScale, build_scaled

NETWORKS: list[Any] = [
    pytest.param("lenet5", (3, 32, 32), {}, marks=pytest.mark.long),
    ("lenet5", (1, 8, 8), {"width": 0.5}),
    ("alexnet", (3, 32, 32), {"hidden": 16}),
    pytest.param("vit", (3, 16, 16), {"width": 24, "depth": 2, "heads": 3}, marks=pytest.mark.long),
    ("vit", (3, 16, 16), {"width": 24, "depth": 2, "heads": 3, "stem": "conv"}),
    ("mlp", (7,), {"hidden": (16, 8)}),
]


@pytest.mark.parametrize(("name", "shape", "options"), NETWORKS)
def test_export_agrees_with_torch_at_batch_1_and_7(
    name: str, shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = build_scaled(name, shape, 10, InputScale(shape, 0.25, 2.0), **options).eval()
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model,
            (torch.zeros(2, *shape),),
            path,
            input_names=["x"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for batch in (1, 7):
        x = rng.normal(size=(batch, *shape)).astype(np.float32)
        (scores,) = session.run(["scores"], {"x": x})
        with torch.no_grad():
            expected = model(torch.from_numpy(x)).numpy()
        assert scores.shape == (batch, 10)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
