"""The files of a bundle as sessions of onnxruntime, the check of their inputs, and what the client answers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle.manifest import Manifest
from l2h.bundle.parts import BundleError, ClientPart, InputPart, ServerPart
from l2h.classifiers import LITERT, Preprocessing, as_client
from l2h.classifiers.base import Inputs, all_finite, fixed_batch, in_batches, read_output, to_array
from l2h.classifiers.external import open_model
from l2h.classifiers.litert import LiteRTModel
from l2h.classifiers.tabular import model_feeds
from l2h.columns import EncodedTable, numbers_of
from l2h.errors import ClientError
from l2h.labels import LabelCodec
from l2h.table import Table

Array = npt.NDArray[Any]
#: How many samples are run at once, which bounds the memory that a large array needs.
CHUNK = 1024
#: Labels (n,), log-probabilities (n, K), and features (n, E) or None.
ClientOutput = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32] | None]
#: From a batch to its output.
ClientRun = Callable[[Inputs], ClientOutput]
#: From a prepared batch, or rows of a table, to the outputs of a file.
ModelRun = Callable[[Inputs], list[Any]]


def make_session(data: bytes, name: str, threads: int, files: Mapping[str, bytes] | None = None) -> Any:
    """Return a session over the bytes of a file, whose weights lie in it or in other ``files`` of the bundle.

    ``threads`` is how many one run may use.
    """
    import onnxruntime as ort

    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise BundleError(f"threads={threads!r} must be a whole number of 1 or more")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; on stderr they could wait for a reader
    if threads > 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return open_model(data, options, files or {})
    except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
        raise BundleError(f"{name} cannot be loaded: {error}") from error


def run(session: Any, outputs: list[str], feeds: dict[str, Array], name: str) -> list[Any]:
    """Run a session once and return its outputs."""
    try:
        values: list[Any] = session.run(outputs, feeds)
    except Exception as error:  # as above
        shapes = ", ".join(f"{key} {value.shape}" for key, value in feeds.items())
        raise BundleError(f"{name} failed on {shapes}: {error}") from error
    return values


def file_run(
    data: bytes, part: ClientPart | ServerPart, threads: int = 1, files: Mapping[str, bytes] | None = None
) -> ModelRun:
    """Return the function that runs the file of a client or a server on a prepared batch of any size."""
    assert part.file is not None
    assert part.input is not None
    assert part.output is not None
    if part.file.endswith(LITERT):
        return _litert_run(data, part, threads)
    session = make_session(data, part.file, threads, files)
    inputs, outputs = (
        {entry.name: entry for entry in entries} for entries in (session.get_inputs(), session.get_outputs())
    )
    names = [part.output] + ([part.features] if isinstance(part, ClientPart) and part.features else [])
    by_columns = part.feed == "columns"
    fits = part.input in inputs and (by_columns or len(inputs) == 1)
    if not fits or not set(names) <= set(outputs):
        raise BundleError(
            f"{part.file} takes {', '.join(sorted(inputs))} and gives {', '.join(sorted(outputs))}; "
            f"expected {part.input} and {', '.join(names)}"
        )
    name, file, batch = part.input, part.file, fixed_batch(inputs[part.input].shape)

    entries = list(inputs.values())

    def once(x: Inputs) -> list[Any]:
        return run(session, names, {name: x} if isinstance(x, np.ndarray) else _feeds(x, entries, file), file)

    return once if batch is None or len(entries) > 1 else partial(_in_batches, once, batch, entries, file)


def _litert_run(data: bytes, part: ClientPart | ServerPart, threads: int) -> ModelRun:
    try:
        model = LiteRTModel(data, threads, part.output)
    except (ValueError, RuntimeError) as error:
        raise BundleError(f"{part.file} cannot be loaded: {error}") from error

    def run_model(x: Inputs) -> list[Any]:
        try:
            return [model.run(numbers_of(x))]
        except (ValueError, RuntimeError) as error:
            raise BundleError(f"{part.file} failed on {x.shape}: {error}") from error

    return run_model


def _feeds(X: EncodedTable, entries: list[Any], file: str) -> dict[str, Array]:
    try:
        return model_feeds(X, entries)
    except ClientError as error:
        raise BundleError(f"{file} does not fit the inputs: {error}") from error


def _in_batches(once: ModelRun, batch: int, entries: list[Any], file: str, x: Inputs) -> list[Any]:
    if isinstance(x, EncodedTable):
        (x,) = _feeds(x, entries, file).values()
    try:
        return list(in_batches(once, x, batch))
    except ClientError as error:
        raise BundleError(f"{file} does not fit the inputs: {error}") from error


def check_inputs(X: npt.ArrayLike | Table, part: InputPart, dtype: np.dtype[Any]) -> Array:
    """Return samples as a bundle takes them; a single one gets its first axis."""
    if isinstance(X, Table):
        what = "images" if len(part.shape) == 3 else "arrays"
        raise BundleError(f"the inputs are a table, and this bundle takes {what} of shape {part.shape}")
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


def exported_client(client: ModelRun, part: ClientPart, classes: int, labels: LabelCodec | None = None) -> ClientRun:
    """Return the function that runs the client's file on a batch; labels that it gives are matched with ``labels``."""
    file, features, prepare, gives = part.file, part.features, part.inputs.apply, part.gives
    raw = part.inputs == Preprocessing()
    known = None if labels is None or labels.values is None else labels

    def answer(X: Inputs) -> ClientOutput:
        values = client(X if raw or isinstance(X, EncodedTable) else prepare(X))
        try:
            output = to_array(values[0], known)
            if known is not None and gives == "label":
                output = known.numbers(output.reshape(-1), "client")
            label, log_p = read_output(output, gives, len(X), classes)
        except ClientError as error:
            raise BundleError(f"{file} does not fit the inputs: {error}") from error
        if features is None:
            return label, log_p, None
        return label, log_p, np.asarray(values[1], dtype=np.float32).reshape(len(X), -1)

    return answer


def given_client(client: Any, manifest: Manifest) -> ClientRun:
    """Return the function that runs the user's own classifier on a batch, reading its output as in training."""
    part, classifier = manifest.client, as_client(client).with_labels(manifest.codec)
    if classifier.probabilities is None:
        classifier.probabilities = part.gives == "probability"
    if part.preprocessing is not None and classifier.preprocessing == Preprocessing():
        classifier.preprocessing = part.preprocessing

    def answer(X: Inputs) -> ClientOutput:
        answers = classifier.answers(X, len(manifest.classes))
        if part.features is None:
            return answers.label, answers.log_probability, None
        if answers.embedding is None:
            raise BundleError("the rejector reads the client's last features, and the client given has none")
        return answers.label, answers.log_probability, answers.embedding

    return answer


def random_inputs(shape: tuple[int, ...], dtype: str, n: int) -> npt.NDArray[Any]:
    """Return n inputs, the same ones on every call: pixels for uint8, else normal numbers."""
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return rng.normal(size=(n, *shape)).astype(dtype)
