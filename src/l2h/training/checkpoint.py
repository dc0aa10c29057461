"""Checkpoints as safetensors files, each written beside the old one and moved over it in one step.

A crash, an interrupt or a full disk during a save leaves the previous checkpoint as it was. Nothing is pickled.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l2h.errors import CheckpointError
from l2h.files import CLIENT_TRAINING, write_atomically

SECONDS = 60.0  # between two checkpoints within an epoch


@dataclass(frozen=True)
class Checkpoint:
    """Holds tensors by name, and plain values beside them."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically; on CheckpointError the old file is untouched."""
    from safetensors.torch import save

    data = save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        metadata={"l2h": json.dumps(dict(meta))},
    )
    write_atomically(path, data)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a file written by :func:`save_checkpoint`; CheckpointError where it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            meta = json.loads((file.metadata() or {}).get("l2h", "{}"))
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint at {path}") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return Checkpoint(tensors, meta)


class Checkpoints:
    """Saves the checkpoints of one training, one file per stage, and loads them where ``resume`` is set.

    Without a folder nothing is saved. ``every`` is the epochs between two saves; a stage's last epoch is always saved.
    A long epoch is also saved in its middle, ``seconds`` after the last save, or as many times later as keep the saving
    below a twentieth of the time; None saves only between epochs.
    """

    def __init__(
        self, folder: Path | None, resume: bool = False, every: int = 1, seconds: float | None = SECONDS
    ) -> None:
        self.folder = folder
        self.resume = resume
        self.every = every
        self.seconds = seconds
        self._saved, self._took = time.monotonic(), 0.0

    def path(self, stage: str) -> Path | None:
        return None if self.folder is None else self.folder / f"stage-{stage.replace(' ', '-')}.safetensors"

    def save(self, stage: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        path = self.path(stage)
        if path is not None:
            begun = time.monotonic()
            save_checkpoint(path, tensors, meta)
            self._saved = time.monotonic()
            self._took = self._saved - begun

    def due(self) -> bool:
        """Return whether it is time to save in the middle of an epoch."""
        if self.folder is None or self.seconds is None:
            return False
        return time.monotonic() - self._saved >= max(self.seconds, 20 * self._took)

    def load(self, stage: str) -> Checkpoint | None:
        """Return the checkpoint of a stage, or None where there is none to resume from."""
        path = self.path(stage)
        if not self.resume or path is None or not path.exists():
            return None
        return load_checkpoint(path)

    def clear(self) -> None:
        """Remove the files that only a resume needs, once the result of the training is saved.

        What the training depended on stays: a calibration on samples of the same data is compared with it.
        """
        if self.folder is None:
            return
        for pattern in ("stage-*.safetensors", ".stage-*.tmp", CLIENT_TRAINING):
            for path in self.folder.glob(pattern):
                path.unlink()


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with ``prefix`` before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it: the inverse of :func:`prefixed`."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named ``optimizer/NUMBER OF THE PARAMETER/KEY``."""
    return {
        f"optimizer/{i}/{key}": torch.as_tensor(value)
        for i, parameter in enumerate(_parameters(optimizer))
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of :func:`optimizer_tensors` back; tensors with other names are ignored."""
    parameters = _parameters(optimizer)
    for name, tensor in under("optimizer/", tensors).items():
        i, key = name.split("/")
        parameter = parameters[int(i)]
        # On a CPU torch keeps the step count as given; on a GPU everything lives beside its parameter.
        optimizer.state[parameter][key] = tensor.clone().to(parameter.device)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
