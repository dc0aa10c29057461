"""How to train: plain values with checks, written to and read from ``config.json``. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from l2h.errors import SettingsError

CHOICES = {
    "recipe": ("default", "paper"),
    "loss": ("priced", "shifted", "swapped", "paper", "released"),
    "precision": ("fp32", "tf32", "bf16"),
    "honest": ("auto", "holdout", "crossfit", "none"),
    "augment": ("none", "shift", "flip+shift"),
    "optimizer": ("sgd", "adamw"),
    "schedule": ("cosine", "constant"),
    "reduction": ("mean", "sum"),
}
_NEWER = ("start", "dropout", "joint")
#: Whole numbers that may be None.
_OPTIONAL = ("batch", "patience", "threads", "workers")


@dataclass(frozen=True)
class StageSettings:
    """One training stage.

    Attributes:
        epochs: passes over its samples, at most.
        batch: samples per step; None for what suits their number, see :func:`usual_batch`.
        optimizer: ``sgd`` (with momentum) or ``adamw``.
        lr: the highest learning rate.
        momentum: of ``sgd``.
        weight_decay: decoupled for ``adamw``.
        schedule: ``cosine`` (a short warm-up, then down to 0) or ``constant``.
        patience: stop after so many epochs without a better held-out loss and keep the best weights; None does neither.
        reduction: of the loss over a batch.
        smoothing: share of a classifier's labels that is spread over all classes.
        mix: share of a classifier's batches in which two images are mixed (CutMix or MixUp).
        distort: share of a classifier's images that are turned, sheared, scaled and recoloured.
    """

    epochs: int = 30
    batch: int | None = 128
    optimizer: str = "adamw"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "cosine"
    patience: int | None = 8
    reduction: str = "mean"
    smoothing: float = 0.0
    mix: float = 0.0
    distort: float = 0.0

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_whole(self, epochs=1, batch=1, patience=1)
        _number("lr", self.lr, math.inf, open_low=True)
        _number("momentum", self.momentum, 1)
        _number("smoothing", self.smoothing, 1, open_high=True)
        _number("mix", self.mix, 1)
        _number("distort", self.distort, 1)
        _number("weight_decay", self.weight_decay, math.inf)


@dataclass(frozen=True)
class Settings:
    """A whole training.

    Attributes:
        recipe: ``default``: the server to convergence, then the rejector on samples the server has not fitted.
            ``paper``: Algorithm 1 (2 where a sync interval above 1 is given), a server step and a rejector step in
            turn on the same samples.
        loss: of the rejector: ``priced`` answers for every price; ``shifted``, ``swapped``, ``paper`` and ``released``
            (what the authors' code computes) are trained for the given one.
        seed: of everything drawn at random. The same seed on the same machine gives the same result.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda`` or ``cuda:1``.
        precision: ``fp32``; ``tf32``, whose matrix products on a GPU keep 10 bits of each factor; or ``bf16`` for
            autocast.
        honest: which samples the rejector learns from, so that the server was not fitted to them: a ``holdout`` share,
            K-fold ``crossfit``, or ``none`` (the paper's way: the server's own training samples). ``auto`` is crossfit
            up to 20,000 samples and holdout above.
        holdout: that share.
        folds: K of the cross-fitting.
        augment: how an image may change without changing its class.
        copies: augmented copies of each sample that the rejector trains on, beside the sample itself.
        distill: weight of the server's softmax in the priced heads' targets; the outcomes have the rest.
        deterministic: ask the GPU's libraries for repeatable kernels.
        threads: CPU threads of torch; None leaves them as they are. One is best for small nets.
        workers: processes that read inputs which are not in memory; 0: the training's own reads them; None: one for
            every two cores, at most 8. Results do not depend on it, so it is not kept with them.
        start: recipe ``paper``: epochs that the server trains before the rejector starts.
        dropout: recipe ``paper``: L2 judges the server with its dropout on, as the authors' code does.
        joint: recipe ``paper``: server and rejector take one step of one optimizer on the sum of their losses, with the
            rejector's learning rate and reduction, and L2 judges the server before that step.
        server: the server's stage; None for what suits the named model.
        rejector: the rejector's stage; None for what suits the recipe.
    """

    recipe: str = "default"
    loss: str = "priced"
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    honest: str = "auto"
    holdout: float = 0.2
    folds: int = 5
    augment: str = "none"
    copies: int = 4
    distill: float = 0.5
    deterministic: bool = True
    threads: int | None = None
    workers: int | None = None
    start: int = 0
    dropout: bool = False
    joint: bool = False
    server: StageSettings | None = None
    rejector: StageSettings | None = None

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_whole(self, seed=0, folds=2, copies=0, start=0, threads=1, workers=0)
        _number("holdout", self.holdout, 1, open_low=True, open_high=True)
        _number("distill", self.distill, 1)
        if self.recipe == "paper" and self.loss == "priced":
            raise SettingsError(
                "recipe 'paper' trains a rejector for a price: use loss 'paper', 'shifted', 'swapped' or 'released'"
            )
        for name in _NEWER:
            value = getattr(self, name)
            if name != "start" and not isinstance(value, bool):
                raise SettingsError(f"{name}={value!r} must be true or false")
            if value and self.recipe != "paper":
                raise SettingsError(
                    f"{name}={value} goes with recipe 'paper': no other trains server and rejector in turn"
                )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for ``config.json``."""
        # What version 0.1 did not know is left out where it is not used.
        return {n: value for n, value in asdict(self).items() if n != "workers" and (value or n not in _NEWER)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings that :meth:`as_dict` wrote; an unknown name is refused."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SettingsError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        stages = {
            name: StageSettings(**values[name]) for name in ("server", "rejector") if values.get(name) is not None
        }
        return cls(**{**values, **stages})

    def with_seed(self, seed: int) -> Settings:
        """Return the same settings with another seed."""
        return replace(self, seed=seed)


def _check_choices(settings: Any) -> None:
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f.name in CHOICES and value not in CHOICES[f.name]:
            raise SettingsError(f"{f.name}={value!r} is unknown; known: {', '.join(CHOICES[f.name])}")


def _check_whole(settings: Any, **least: int) -> None:
    for name, low in least.items():
        value = getattr(settings, name)
        if value is None and name in _OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise SettingsError(f"{name}={value!r} must be a whole number of {low} or more")


def _number(name: str, value: Any, high: float, open_low: bool = False, open_high: bool = False) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if fits:
        fits = (value > 0 if open_low else value >= 0) and (value < high if open_high else value <= high)
    if not fits:
        span = f"{'(' if open_low else '['}0, {high}{')' if open_high or high == math.inf else ']'}"
        raise SettingsError(f"{name}={value!r} must be a number in {span}")


#: The authors' settings: batch 16, SGD with momentum 0.9, e at 1e-3 on the mean loss, r at 1e-4 on the summed loss.
PAPER_SERVER = StageSettings(
    epochs=15, batch=16, optimizer="sgd", lr=1e-3, momentum=0.9, schedule="constant", patience=None
)
PAPER_REJECTOR = replace(PAPER_SERVER, lr=1e-4, reduction="sum")
DEFAULT_REJECTOR = StageSettings(epochs=20, batch=None, optimizer="adamw", lr=1e-3, weight_decay=5e-2, patience=5)
#: Of a rejector with a separable trunk, whose batch norm stands and needs higher rates, and whose held-out loss is no
#: reason to stop before the rate has come down; and of a perceptron sized to a budget, which needs them as well.
SEPARABLE_REJECTOR = replace(DEFAULT_REJECTOR, epochs=40, lr=1e-2, patience=40)


def usual_batch(samples: int) -> int:
    """Return 256, or of few samples the power of two, 8 or more, that leaves an epoch at least 12 steps.

    One more where the last batch would have a single sample, which batch norm cannot be trained on.
    """
    batch = max(8, min(256, (1 << (samples // 12).bit_length()) // 2))
    return next(b for b in range(batch, 2 * batch) if samples % b != 1 or samples == 1)


def flat(values: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested plain values, such as settings, as pairs of a dotted name and a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value


def as_text(value: Any) -> str:
    """Return a plain value as people read it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
