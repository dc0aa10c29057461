"""What the targets share: the bound on memory, and changes of JSON that leave it JSON."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

ODD = [
    *(None, True, False, 0, 1, -1, 2, 255, 256, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**40, 0.5, -0.0, 1e300, 1e-320),
    *("", "x", "FP32", "UINT8", "BOOL", "FP16", "INT64", "weights", "answers", "..", "a/b", "\0", "\ud800", "0" * 64),
    *([], {}, [[]], [1], [2, 2], [0], [True], [1, True], {"a": 1}, [1.5, 2], [[1, 2], [3, 4]]),
]


def scratch() -> Path:
    """A folder for the files of a target, in memory where the system can: the readers take thousands a second."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class HeldTooMuch(Exception):  # noqa: N818 - it is the finding of a target
    """A reader took more memory than its input is worth."""


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """See that nothing inside ever holds more than so many bytes; the size of numpy's arrays counts."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    yield
    taken = tracemalloc.get_traced_memory()[1] - before
    if taken > size:
        raise HeldTooMuch(f"{taken} bytes were held, at most {size} are allowed")


def mutate_json(data: bytes, max_size: int, seed: int) -> bytes:
    """Change JSON in one place so that it stays JSON, or else some of its bytes; a tail after a zero byte stays."""
    import atheris

    rng = random.Random(seed)
    head, zero, tail = data.partition(b"\0")
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        value = None
    if value is None or rng.random() < 0.2:
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed(value, rng)
    out = json.dumps(value).encode() + zero + tail
    return out if len(out) <= max_size else data


def _changed(value: Any, rng: random.Random) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or rng.random() < 0.1:
        return deepcopy(rng.choice(ODD))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    what = rng.random()
    if what < 0.6:
        value[key] = _changed(value[key], rng)
    elif what < 0.7:
        del value[key]
    elif isinstance(value, list):
        value.insert(key, deepcopy(value[rng.choice(keys)] if what < 0.85 else rng.choice(ODD)))
    else:
        value[rng.choice(keys) if what < 0.85 else rng.choice(("x", "data", "shape", "meta"))] = deepcopy(value[key])
    return value
