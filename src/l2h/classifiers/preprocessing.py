"""What a model is fed: how samples become the array that it takes, the same in training and on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import SettingsError, shown

Array = npt.NDArray[Any]
Matrix = npt.NDArray[np.float32]
#: What pixels are divided by, and what is then subtracted.
RANGES = {"-1..1": (127.5, 1.0), "0..1": (255.0, 0.0), "imagenet": (255.0, 0.0), "0..255": (1.0, 0.0)}
LAYOUTS = ("NCHW", "NHWC")
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LARGEST = 16384


@dataclass(frozen=True)
class Preprocessing:
    """How samples are made into what a model takes. What is left out is found out, or not done.

    Args:
        scale: what the pixels 0..255 of uint8 images become: ``0..1``, ``-1..1``, ``0..255`` (float32, unscaled) or
            ``imagenet``, which is 0..1 less ImageNet's mean, divided by its standard deviation. Where None, ``fit``
            tries all of them on labelled samples. Floats are never scaled.
        mean: subtracted after the scaling: one number, or one per channel. The scale is 0..1 where it is None.
        std: what the result is divided by, likewise.
        size: the height and width that the model takes, or one number for both. The image's shorter side is brought
            to it, and the centre is cut out. Where None, what the model's file declares.
        layout: ``NCHW`` or ``NHWC``; where None, what the shape that the file declares tells, else ``NCHW``.
        flat: give one float32 row per sample.

    Raises:
        SettingsError: a value that is none of these.

    Example:
        >>> import numpy as np
        >>> X = np.full((2, 3, 4, 4), 255, dtype=np.uint8)
        >>> x = Preprocessing(scale="0..1", layout="NHWC", size=2).apply(X)
        >>> x.shape, x.dtype.name
        ((2, 2, 2, 3), 'float32')
    """

    scale: str | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    size: int | tuple[int, int] | None = None
    layout: str | None = None
    flat: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and self.scale not in RANGES:
            raise SettingsError(f"scale={shown(self.scale)} is none of {', '.join(RANGES)}")
        if self.layout is not None and self.layout not in LAYOUTS:
            raise SettingsError(f"layout={shown(self.layout)} is none of {', '.join(LAYOUTS)}")
        if self.scale == "imagenet" and (self.mean is not None or self.std is not None):
            raise SettingsError("scale='imagenet' has a mean and a std of its own: give them with scale='0..1' instead")
        for name in ("mean", "std"):
            values = _numbers(getattr(self, name))
            if values is None:
                continue
            low = 0 if name == "std" else -math.inf
            if not values or not all(math.isfinite(value) and value > low for value in values):
                above = " above 0" if name == "std" else ""
                raise SettingsError(
                    f"{name}={shown(getattr(self, name))} must be finite numbers{above}, one per channel"
                )
            object.__setattr__(self, name, values)
        if self.size is not None:
            pair = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
            if len(pair) != 2 or not all(isinstance(side, int) and 1 <= side <= _LARGEST for side in pair):
                raise SettingsError(f"size={shown(self.size)} must be a whole number up to {_LARGEST}, or two")
            object.__setattr__(self, "size", pair)
        # Whether there is nothing but the scale to see to: a device does that for every input.
        plain = self.size is None and self.layout != "NHWC" and self.statistics == (None, None)
        object.__setattr__(self, "_plain", plain)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Return what :meth:`as_dict` wrote."""
        plain: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**plain)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, those that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v not in (None, False)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.as_dict().items()) or "as they are"

    @property
    def statistics(self) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """Mean and standard deviation, one or one per channel; None where there is none."""
        return _IMAGENET if self.scale == "imagenet" else (_numbers(self.mean), _numbers(self.std))

    @property
    def pixel_scale(self) -> str | None:
        """The scale of uint8 images: 0..1 where only a mean or a std is given."""
        return "0..1" if self.scale is None and (self.mean is not None or self.std is not None) else self.scale

    def completed(
        self, shape: Sequence[int], declared: Sequence[Any] = (), usual: str | None = None, channels_last: bool = False
    ) -> Preprocessing:
        """Return what is done to samples of this shape, with everything found out that was left out.

        ``declared`` is the shape of a sample as the model's file declares it, with other values than whole numbers
        where any will do; ``usual`` is the scale where none is chosen; ``channels_last`` reads a shape that fits both
        layouts as NHWC.
        """
        scale, layout, size = self.pixel_scale or usual, self.layout, self.size
        if len(shape) == 3 and len(declared) == 3:
            first, last = (declared[axis] == shape[0] for axis in (0, 2))
            if layout is None and last and (channels_last or not first):
                layout = "NHWC"
            stated, other = (last, first) if layout == "NHWC" else (first, last)
            channels = declared[2 if layout == "NHWC" else 0]
            if self.layout is not None and other and not stated and isinstance(channels, int) and channels > 0:
                raise SettingsError(
                    f"layout={layout} was given, but the model declares inputs of {tuple(declared)} for images with "
                    f"{shape[0]} channels: leave it out"
                )
            height, width = (declared[axis] for axis in ((0, 1) if layout == "NHWC" else (1, 2)))
            if size is None and isinstance(height, int) and isinstance(width, int) and height * width > 0:
                size = (height, width)
        if len(shape) == 3 and size == tuple(shape[1:]):
            size = None
        # Unscaled rows are float32 anyway.
        scale = None if self.flat and scale == "0..255" else scale
        return replace(self, scale=scale, layout=layout if layout == "NHWC" else None, size=size)

    def apply(self, X: Array) -> Array:
        """Return samples (n, ...) as the model takes them; images are (n, C, H, W)."""
        if self._plain:  # type: ignore[attr-defined]
            x = X if self.scale is None else _scaled(X, X, self.scale)
            return x.reshape(len(x), -1).astype(np.float32, copy=False) if self.flat else x
        x, scale = X, self.pixel_scale
        if self.size is not None and X.ndim == 4:
            rows, columns = resize_matrices(X.shape[2], X.shape[3], self.size)
            x = rows @ X.astype(np.float32) @ columns
            if X.dtype == np.uint8 and scale is None:
                x = np.rint(x).astype(np.uint8)
        if scale is not None:
            x = _scaled(X, x, scale)
        mean, std = self.statistics
        if mean is not None:
            x = x - by_channel(mean, x)
        if std is not None:
            x = x / by_channel(std, x)
        if self.layout == "NHWC" and x.ndim == 4:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        return x.reshape(len(x), -1).astype(np.float32, copy=False) if self.flat else x


def _scaled(X: Array, x: Array, scale: str) -> Matrix:
    """Return samples as float32; ``x`` is what became of ``X``, whose pixels are scaled where it holds any."""
    if X.dtype != np.uint8:
        return np.ascontiguousarray(x, dtype=np.float32)
    divisor, subtracted = RANGES[scale]
    return x.astype(np.float32, copy=False) / np.float32(divisor) - np.float32(subtracted)


def by_channel(values: tuple[float, ...], x: Array) -> Matrix:
    """Return one number, or one per channel, in the shape that goes with samples (n, C, ...)."""
    if len(values) not in (1, x.shape[1]):
        raise SettingsError(f"{len(values)} numbers of mean or std were given for samples with {x.shape[1]} channels")
    return np.array(values, dtype=np.float32).reshape(-1, *[1] * (x.ndim - 2))


@lru_cache(maxsize=16)
def resize_matrices(height: int, width: int, size: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Return what an image (height, width) is multiplied by, from the left and from the right, to get this size.

    The largest centred part of the right proportions is resized by a triangle filter, as Pillow's ``BILINEAR`` does.
    """
    ratio = min(height / size[0], width / size[1])
    rows, columns = (_resize_weights(*side, ratio) for side in zip((height, width), size, strict=True))
    return rows, np.ascontiguousarray(columns.T)


def _resize_weights(length: int, size: int, ratio: float) -> Matrix:
    centres = (length - size * ratio) / 2 + (np.arange(size) + 0.5) * ratio
    distance = np.abs(np.arange(length) + 0.5 - centres[:, None]) / max(ratio, 1.0)
    weights = np.maximum(1 - distance, 0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def _numbers(value: float | Sequence[float] | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return (float(value),) if isinstance(value, int | float) else tuple(float(number) for number in value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{shown(value)} is neither a number nor numbers") from error


#: uint8 images in [-1, 1]: how nets trained here are fed.
UNIT_RANGE = Preprocessing(scale="-1..1")
