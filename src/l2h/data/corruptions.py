"""Images made worse on the fly, in five strengths: noise, blur, less contrast, JPEG.

The strengths are those of CIFAR-10-C (Hendrycks and Dietterich 2019), which were chosen for images of 32 pixels. Blur
grows with larger images; the others do not depend on the size.
"""

import io
from collections.abc import Callable

import numpy as np

from l2h.data.dataset import Array
from l2h.data.reading import need
from l2h.errors import DataError

#: By the kind of corruption, what it does at the strengths 1 to 5: the standard deviation of the noise (of a range of
#: 1), the blur's in pixels, the factor of the contrast, the quality of the JPEG file.
STRENGTHS: dict[str, tuple[float, ...]] = {
    "noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "blur": (0.4, 0.6, 0.7, 0.8, 1.0),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "jpeg": (80, 65, 58, 50, 40),
}
CORRUPTIONS = tuple(STRENGTHS)
_CHUNK = 1024
_BLUR_SIDE = 32  # pixels of the shorter side at which a blur has the width of the table


def corrupt(X: Array, kind: str, strength: int, seed: int = 0) -> Array:
    """Return images as a worse camera, lens or link would give them.

    Args:
        X: images uint8 (n, C, H, W).
        kind: ``noise``, ``blur``, ``contrast`` or ``jpeg``; the last needs one or three channels.
        strength: 1 to 5.
        seed: of the noise.

    Raises:
        DataError: these are no such images, or an unknown kind or strength.

    Example:
        >>> stripes = np.tile(np.uint8([0, 200]), (1, 1, 8, 4))
        >>> corrupt(stripes, "contrast", 2)[0, 0, 0, :4].tolist()
        [50, 150, 50, 150]
    """
    if kind not in STRENGTHS or strength not in range(1, 6):
        known = ", ".join(CORRUPTIONS)
        raise DataError(f"{kind}:{strength} is no corruption: there are {known}, each of strength 1 to 5")
    if getattr(X, "dtype", None) != np.uint8 or X.ndim != 4:
        found = f"{getattr(X, 'dtype', type(X).__name__)} of shape {tuple(X.shape)}"
        raise DataError(f"{kind} is for images of 8 bits, uint8 (n, C, H, W); these inputs are {found}")
    if kind == "jpeg" and X.shape[1] not in (1, 3):
        raise DataError(f"jpeg is for images of one or three channels; these have {X.shape[1]}")
    amount, rng = STRENGTHS[kind][strength - 1], np.random.default_rng((seed, strength))
    change: dict[str, Callable[[Array], Array]] = {
        "noise": lambda part: part + rng.normal(0, 255 * amount, part.shape).astype(np.float32),
        "blur": lambda part: _blur(part, amount),
        "contrast": lambda part: _contrast(part, amount),
        "jpeg": lambda part: _jpeg(part, int(amount)),
    }
    out = np.empty_like(X)
    for start in range(0, len(X), _CHUNK):
        part = X[start : start + _CHUNK]
        made = change[kind](part if kind == "jpeg" else part.astype(np.float32))
        out[start : start + _CHUNK] = made if kind == "jpeg" else np.rint(made).clip(0, 255)
    return out


def _blur(part: Array, sigma: float) -> Array:
    filters = need("scipy.ndimage", "scipy", "blurring images")
    wide = sigma * max(1.0, min(part.shape[2:]) / _BLUR_SIDE)
    return np.asarray(filters.gaussian_filter(part, (0, 0, wide, wide), mode="nearest"))


def _contrast(part: Array, factor: float) -> Array:
    mean = part.mean(axis=(2, 3), keepdims=True)
    return np.asarray((part - mean) * factor + mean)


def _jpeg(part: Array, quality: int) -> Array:
    pillow = need("PIL.Image", "pillow", "JPEG files")
    out = np.empty_like(part)
    for i, image in enumerate(part.transpose(0, 2, 3, 1)):
        buffer = io.BytesIO()
        pillow.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, "JPEG", quality=quality)
        pixels = np.asarray(pillow.open(buffer))
        out[i] = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return out
