"""Tests of a property on many examples: `make test` tries a part of them, `make test-long` all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., object])
#: One of so many examples, and ten at least.
PART = 1 if "L2H_ALL_EXAMPLES" in os.environ else 5


def examples(count: int, **more: Any) -> Callable[[Test], Test]:
    """Try a property on so many examples, or on the first of them in `make test`."""
    chosen = settings(max_examples=max(count // PART, min(count, 10)), **more)
    return lambda test: pytest.mark.examples(chosen(test))
