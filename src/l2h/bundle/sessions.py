"""A file of a bundle as a session of onnxruntime, and the check of its inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import InputPart
from l2h.classifiers import all_finite

Array = npt.NDArray[Any]
#: How many samples are run at once, which bounds the memory that a large array needs.
CHUNK = 1024


def make_session(data: bytes, name: str, threads: int) -> Any:
    """Return a session over the bytes of a file; ``threads`` is how many one run may use.

    Raises:
        BundleError: onnxruntime cannot load it, or ``threads`` is no number of 1 or more.
    """
    import onnxruntime as ort

    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise BundleError(f"threads={threads!r} must be a whole number of 1 or more")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if threads > 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
        raise BundleError(f"{name} cannot be loaded: {error}") from error


def run(session: Any, outputs: list[str], feeds: dict[str, Array], name: str) -> list[Any]:
    """Run a session once and return its outputs.

    Raises:
        BundleError: the run failed; the message has the shapes of the inputs.
    """
    try:
        values: list[Any] = session.run(outputs, feeds)
    except Exception as error:  # as above
        shapes = ", ".join(f"{key} {value.shape}" for key, value in feeds.items())
        raise BundleError(f"{name} failed on {shapes}: {error}") from error
    return values


def check_inputs(X: npt.ArrayLike, part: InputPart, dtype: np.dtype[Any]) -> Array:
    """Return samples as a bundle takes them; a single one gets its first axis.

    Raises:
        BundleError: another shape or type, no samples, or a value that is not finite.
    """
    try:
        x = np.asarray(X)
    except ValueError as error:
        raise BundleError(f"the inputs are no array: {error}") from error
    if x.shape[1:] != part.shape or x.ndim != len(part.shape) + 1:
        if x.shape != part.shape:
            raise BundleError(f"inputs have shape {x.shape}, expected {('n', *part.shape)}".replace("'n'", "n"))
        x = x[None]
    if not len(x):
        raise BundleError(f"inputs have shape {x.shape}: give at least one sample")
    if x.dtype != dtype:
        # As in training: other numbers become float32, but uint8 images are another scale.
        if dtype == np.uint8 or x.dtype.kind not in "fiub" or (x.dtype == np.uint8 and x.ndim == 4):
            raise BundleError(f"inputs are {x.dtype}, expected {part.dtype}: their scales would differ")
        with np.errstate(over="ignore"):
            x = x.astype(dtype)
    if x.dtype.kind == "f" and not all_finite(x):
        row = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(axis=1)))
        raise BundleError(f"input {row} holds a value that is NaN or infinite as float32: leave it out")
    return x
