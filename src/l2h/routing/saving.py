"""A router as files: its description in ``config.json``, its arrays in one ``.npz`` without pickles.

A folder may come from a stranger: sizes are checked before anything is read into memory, and every array for its shape
and for numbers that are not finite.
"""

import hashlib
import io
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from l2h.errors import RunError
from l2h.files import CHECKPOINTS, CONFIG, SCHEMA, read_config, read_npz, read_whole, write_atomically, write_json
from l2h.ngrams import MOST_BITS, NGrams
from l2h.routing.router import Router

ARRAYS = f"{CHECKPOINTS}/router.npz"
#: Bytes of the file, and of all arrays together, unpacked: 2 heads of 2**21 columns fit well.
_MOST_BYTES = 128 * 2**20
_NAMES = ("centre", "scale", "weights", "bias", "calibration", "span", "held_out")


def save_router(router: Router, folder: Path) -> Path:
    """Write a router into a folder, beside what ``config.json`` holds there."""
    config = read_config(folder) if (folder / CONFIG).exists() else {"schema": SCHEMA}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: getattr(router, name) for name in _NAMES})
    write_atomically(folder / ARRAYS, buffer.getvalue())
    described = {
        "dataset": router.dataset,
        "seed": router.seed,
        "ngrams": None if router.ngrams is None else asdict(router.ngrams),
        "columns": router.columns,
        "choice": dict(router.choice),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    write_json(folder / CONFIG, config | {"router": described})
    return folder


def holds_router(folder: Path) -> bool:
    """Return whether a folder holds a run of a router; False also where it holds no run at all."""
    return (folder / CONFIG).is_file() and "router" in read_config(folder)


def load_router(folder: Path) -> Router:
    """Read what :func:`save_router` wrote; raise a :class:`RunError` for anything else."""
    config = read_config(folder).get("router")
    if config is None:
        raise RunError(f"{folder} holds no finished router: train one with l2h train --outcomes FILE --out {folder}")
    path = folder / ARRAYS
    try:
        data = read_whole(path, _MOST_BYTES)
        if hashlib.sha256(data).hexdigest() != str(config["sha256"]):
            raise ValueError(f"{path.name} is not the file that {CONFIG} describes (sha256)")
        arrays = read_npz(data, lambda _: _NAMES, _MOST_BYTES)
        ngrams = None if config["ngrams"] is None else _ngrams(config["ngrams"])
        columns = ngrams.columns if ngrams is not None else int(config["columns"])
        _check(arrays, columns, embeddings=ngrams is None)
        return Router(
            ngrams=ngrams,
            **arrays,
            dataset=str(config["dataset"]),
            seed=int(config["seed"]),
            choice={str(name): _finite(name, value) for name, value in config["choice"].items()},
        )
    except FileNotFoundError:
        raise RunError(f"{folder} holds no finished router: {ARRAYS} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(f"the router in {folder} is damaged: {error}; train it again or copy it anew") from error


def _finite(name: str, value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}")
    return number


def _ngrams(values: dict[str, Any]) -> NGrams:
    words, characters = ((int(low), int(high)) for low, high in (values["words"], values["characters"]))
    return NGrams(words=words, characters=characters, bits=int(values["bits"]))


def _check(arrays: dict[str, Any], columns: int, *, embeddings: bool) -> None:
    if not 1 <= columns <= 4 << MOST_BITS:
        raise ValueError(f"it has {columns} columns")
    shapes = {
        "centre": (columns,) if embeddings else (0,),
        "scale": (columns,),
        "weights": (2, columns),
        "bias": (2,),
        "calibration": (2, 6),
        "span": (2, 2),
        "held_out": (len(arrays["held_out"]), 2),
    }
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name} is not {shape} finite numbers; it is {array.dtype} {array.shape}")
