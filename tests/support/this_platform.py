"""Whether numbers of version 0.1 were computed on a platform like this one, and figures like its own."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

VERSION_0_1 = Path(__file__).parents[1] / "compatibility" / "version_0_1"


def platform_of() -> dict[str, str]:
    """Return what floating-point results depend on: where all of it is equal, they are equal to the last bit."""
    return {
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        **{name: version(name) for name in ("numpy", "torch", "onnxruntime", "onnx", "onnxscript")},
    }


def same_platform() -> bool:
    """Return whether the kept answers of version 0.1 come from a platform like this one."""
    return bool(json.loads((VERSION_0_1 / "answers.json").read_text())["platform"] == platform_of())


def assert_near(value: Any, before: Any, near: float, where: str = "") -> None:
    """Assert that two JSON values are equal, but for floating-point numbers that may differ by ``near``."""
    if isinstance(before, dict):
        assert value.keys() == before.keys(), where
        for key in before:
            assert_near(value[key], before[key], near, f"{where} {key}")
    elif isinstance(before, list):
        assert len(value) == len(before), where
        for i, (item, other) in enumerate(zip(value, before, strict=True)):
            assert_near(item, other, near, f"{where} {i}")
    elif isinstance(before, float):
        assert value == pytest.approx(before, rel=near, abs=near), where
    else:
        assert value == before, where
