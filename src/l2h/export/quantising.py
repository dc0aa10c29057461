"""The rejector in int8, kept only where that is measured to be faster and no worse.

The client is fixed, so its answers must not change by a bit: the rejector is quantised by itself, before it is fused
with the client.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from l2h.bundle import BundleError
from l2h.bundle.sessions import CHUNK, make_session, run
from l2h.costs import FloatArray

if TYPE_CHECKING:
    from onnx import ModelProto

Array = npt.NDArray[Any]
#: Kept where a run takes less than this share of the float one's time: less than a twentieth is not worth the rounding.
KEEP_BELOW = 0.95
#: Kept where the risk rises by no more than so many standard errors of the paired difference.
STANDARD_ERRORS = 1.0
_RANGES = 256  # samples from which the ranges of the activations are taken
_REPEATS = 31
_SECONDS = 0.004  # that one repeat takes at the least


@dataclass(frozen=True)
class Measured:
    """What was found out about a quantised rejector.

    Attributes:
        method: ``static`` (ranges of activations from samples) or ``dynamic`` (found at each run); None where neither
            could be made.
        ratio: its time for one sample in units of the float one's, medians of interleaved repeats; None likewise.
        risk_difference: the system's risk with it less that with the float one, on the samples given.
        standard_error: of that paired difference.
        samples: how many.
        kept: whether it is the one in the bundle.
        why: in words.
    """

    method: str | None
    ratio: float | None
    risk_difference: float | None
    standard_error: float | None
    samples: int
    kept: bool
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def quantise(
    rejector: ModelProto,
    finish: Callable[[ModelProto], ModelProto],
    feeds: Mapping[str, Array],
    loss: Callable[[Array], FloatArray],
) -> tuple[ModelProto | None, Measured]:
    """The better quantised form of a rejector, if it is worth having.

    Args:
        rejector: the float graph, not fused.
        finish: makes of it the graph that the device runs.
        feeds: its inputs on the samples to measure on.
        loss: the system's loss on each of those samples, from scores (n, R, 2).

    Returns:
        The finished graph or None, and what was measured of the best one.
    """
    n = len(feeds["x"])
    original = _Run(finish(rejector), feeds)
    before = loss(original.scores())
    best: tuple[ModelProto | None, Measured] | None = None
    failed = ""
    for method, make in (("static", _static), ("dynamic", _dynamic)):
        try:
            graph = finish(make(rejector, feeds))
            candidate = _Run(graph, feeds)
        except (_QuantiseError, BundleError) as error:
            failed = f"it cannot be quantised: {error}"
            continue
        if not original.same_client(candidate):
            failed = "the client's answers would change"
            continue
        measured = _judge(method, _ratio(original, candidate), loss(candidate.scores()) - before)
        found = (graph if measured.kept else None, measured)
        if best is None or _better(measured, best[1]):
            best = found
    if best is None:
        best = (None, Measured(None, None, None, None, n, False, failed))
    logging.getLogger("l2h").info("int8 rejector: %s", best[1].why)
    return best


def _judge(method: str, ratio: float, difference: FloatArray) -> Measured:
    n = len(difference)
    rise = float(difference.mean())
    error = float(difference.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    told = f"{method}, {ratio:.2f} of the float time, risk {rise:+.4f} ± {error:.4f} on {n} samples"
    if ratio >= KEEP_BELOW:
        kept, why = False, f"not kept, not faster: {told}"
    elif rise > STANDARD_ERRORS * error + 1e-12:  # one sample alone is a rise of just its standard error
        kept, why = False, f"not kept, worse: {told}"
    else:
        kept, why = True, f"kept: {told}"
    return Measured(method, round(ratio, 4), rise, error, n, kept, why)


def _better(one: Measured, other: Measured) -> bool:
    if one.kept != other.kept:
        return one.kept
    assert one.ratio is not None
    assert other.ratio is not None
    return one.ratio < other.ratio


class _QuantiseError(Exception):
    """The quantiser could not."""


class _Run:
    """A graph as the device runs it, and its inputs."""

    def __init__(self, graph: ModelProto, feeds: Mapping[str, Array]) -> None:
        self.session = make_session(graph.SerializeToString(), "rejector.onnx", 1)
        there = [entry.name for entry in self.session.get_inputs()]
        self.feeds = {name: feeds[name] for name in there}
        self.outputs = [entry.name for entry in self.session.get_outputs()]
        self.one = {name: values[:1] for name, values in self.feeds.items()}
        self.found = self._run()

    def scores(self) -> Array:
        """On all samples, (n, R, 2)."""
        return self.found["scores"]

    def same_client(self, other: _Run) -> bool:
        """Whether the client inside, if there is one, says the same to the bit."""
        return all(np.array_equal(self.found[name], other.found[name]) for name in self.outputs if name != "scores")

    def seconds(self, runs: int) -> float:
        """Of one run on one sample, over so many."""
        begun = time.perf_counter()
        for _ in range(runs):
            self.session.run(self.outputs, self.one)
        return (time.perf_counter() - begun) / runs

    def _run(self) -> dict[str, Array]:
        n = len(next(iter(self.feeds.values())))
        parts = [
            run(self.session, self.outputs, {name: v[i : i + CHUNK] for name, v in self.feeds.items()}, "int8 rejector")
            for i in range(0, n, CHUNK)
        ]
        return {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(self.outputs)}


def _ratio(original: _Run, candidate: _Run) -> float:
    """Time of one run in units of the original's: medians of alternating repeats, so that both meet the same load."""
    runs = max(3, int(_SECONDS / max(original.seconds(3), 1e-7)))
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(_REPEATS):
        for side in (0, 1) if i % 2 else (1, 0):
            times[side].append((original, candidate)[side].seconds(runs))
    return statistics.median(times[1]) / statistics.median(times[0])


def _static(rejector: ModelProto, feeds: Mapping[str, Array]) -> ModelProto:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    return _by_file(
        rejector,
        lambda source, target: quantize_static(
            source,
            target,
            _reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm", "MatMul", "Relu", "MaxPool"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # processors without VNNI add pairs of products in 16 bits
        ),
    )


def _dynamic(rejector: ModelProto, feeds: Mapping[str, Array]) -> ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    return _by_file(
        rejector,
        lambda source, target: quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["Gemm", "MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        ),
    )


def _by_file(model: ModelProto, make: Callable[[str, str], None]) -> ModelProto:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder) / "float.onnx"), str(Path(folder) / "int8.onnx")
        onnx.save(model, source)
        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # it advises a preparation that ONNX graphs from torch do not need
        try:
            make(source, target)
        except Exception as error:  # the quantiser's own errors have no common base
            raise _QuantiseError(f"{type(error).__name__}: {error}") from error
        finally:
            root.setLevel(level)
        quantised = onnx.load(target)
    quantised.ir_version = max(model.ir_version, min(quantised.ir_version, 10))
    del quantised.graph.value_info[:]
    return quantised


def _reader(feeds: Mapping[str, Array]) -> Any:
    """Samples for the ranges of the activations, drawn evenly, in the form that the quantiser takes."""
    from onnxruntime.quantization import CalibrationDataReader

    n = len(feeds["x"])
    rows = np.unique(np.linspace(0, n - 1, min(n, _RANGES)).astype(int))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[dict[str, Array]] = (
                {name: values[rows[i : i + 32]] for name, values in feeds.items()} for i in range(0, len(rows), 32)
            )

        def get_next(self) -> dict[str, Array] | None:
            return next(self.batches, None)

    return Reader()
