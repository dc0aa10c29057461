"""The rejector in int8, kept only where that is measured to be faster and no worse.

The client's answers must not change by a bit, so the rejector is quantised by itself, before it is fused with the
client.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from l2h.bundle import BundleError
from l2h.bundle.sessions import CHUNK, exported_client, file_run, make_session, run
from l2h.classifiers import ClassifierAnswers
from l2h.classifiers.base import Array, Labels
from l2h.columns import numbers_of
from l2h.costs import FloatArray
from l2h.decision import AnyCosts, Judgement
from l2h.decision.judgement import outcome_costs
from l2h.errors import ConversionError
from l2h.export.models import SCORES, STUDENT, BundleModels, bundle_platt
from l2h.export.onnx import quiet
from l2h.fitted import FittedSystem

if TYPE_CHECKING:
    from onnx import ModelProto

#: Kept where a run takes less than this share of the float one's time: less than a twentieth is not worth the rounding.
KEEP_BELOW = 0.95
#: Kept where the risk rises by no more than this many standard errors of the paired difference.
STANDARD_ERRORS = 1.0
_RANGE_SAMPLES = 256  # samples from which the ranges of the activations are taken
_REPEATS = 31
_SECONDS = 0.004  # that one repeat takes at least


@dataclass(frozen=True)
class Int8Measurement:
    """What was measured of a quantised rejector; the first four are None where none could be made."""

    method: str | None  # static (ranges of activations from samples) or dynamic (found at each run)
    ratio: float | None  # its time for one sample in units of the float one's, medians of interleaved repeats
    risk_difference: float | None  # the system's risk with it minus that with the float one, on the samples given
    standard_error: float | None  # of that paired difference
    samples: int  # how many
    kept: bool  # whether it is the one in the bundle
    why: str  # the reason in words
    #: With a second opinion: what else int8 changes, as means over the samples: ``two_ways``, the risk where the
    #: student may not answer, and ``student``, the share of inputs on which the student is wrong.
    also: Mapping[str, float] | None = None


def int8_rejector(
    fitted: FittedSystem, models: BundleModels, chosen: list[int], costs: AnyCosts, X: Array, y: Labels
) -> tuple[ModelProto, Int8Measurement]:
    """Return the rejector that the device runs, quantised where that was measured to be worth it."""
    answers = _client_answers(fitted, models, X)
    servers = [_server_labels(fitted, models, X, number) == y for number in range(len(fitted.servers))]
    at = next(i for i, r in enumerate(chosen) if fitted.specs[r].costs in (None, costs))
    platt = bundle_platt(fitted, chosen)[at]
    lowest, highest = outcome_costs(fitted.answerers, costs).T

    def loss(outputs: Mapping[str, Array], left_out: int | None = None) -> FloatArray:
        """Return the loss on each sample, where the answerer of one column may be left out."""
        students = [outputs[STUDENT][:, at] == y] if STUDENT in outputs else []
        right = np.column_stack([answers.label == y, *students, *servers])
        kept = [k for k in range(right.shape[1]) if k != left_out]
        answerers, scores = tuple(fitted.answerers[k] for k in kept), outputs[SCORES][:, at][:, kept]
        if fitted.specs[chosen[at]].costs is None:
            judgement = Judgement.from_heads(scores, platt[kept], answerers)
        else:
            judgement = Judgement(scores, answerers=answerers)
        column = np.array(kept)[judgement.choose(costs, judgement.remote(costs))]
        return np.asarray(np.where(right[np.arange(len(y)), column], lowest[column], highest[column]))

    def also(outputs: Mapping[str, Array]) -> dict[str, FloatArray]:
        if STUDENT not in outputs:
            return {}
        return {"two_ways": loss(outputs, left_out=1), "student": (outputs[STUDENT][:, at] != y).astype(float)}

    known = {"x": numbers_of(X), "log_probability": answers.log_probability, "embedding": answers.embedding}
    names = {entry.name for entry in models.rejector.graph.input} | {"x"}
    feeds = {name: values for name, values in known.items() if name in names and values is not None}
    quantised, measured = quantise(models.rejector, models.on_device, feeds, loss, also)
    return models.on_device(models.rejector) if quantised is None else quantised, measured


def quantise(
    rejector: ModelProto,
    on_device: Callable[[ModelProto], ModelProto],
    feeds: Mapping[str, Array],
    loss: Callable[[Mapping[str, Array]], FloatArray],
    also: Callable[[Mapping[str, Array]], dict[str, FloatArray]] = lambda outputs: {},
) -> tuple[ModelProto | None, Int8Measurement]:
    """Quantise a rejector in two ways; return the better one as the device runs it, if worth having, and its figures.

    ``rejector`` is the float model, not fused; ``on_device`` turns it into what the device runs; ``feeds`` are its
    inputs on the samples to measure on, and ``loss`` gives the system's loss on each of them from its outputs by name.
    ``also`` gives further figures of each sample, which are recorded and decide nothing.
    """
    original = _TimedModel(on_device(rejector), feeds)
    before, others = loss(original.outputs), also(original.outputs)
    measured: list[tuple[Int8Measurement, ModelProto]] = []
    failed = ""
    for method in ("static", "dynamic"):
        try:
            model = on_device(_quantise_model(rejector, method, feeds))
            candidate = _TimedModel(model, feeds)
        except (ConversionError, BundleError) as error:
            failed = f"it cannot be quantised: {error}"
            continue
        if not original.same_client(candidate):
            failed = "the client's answers would change"
            continue
        ratio, difference = _time_ratio(original, candidate), loss(candidate.outputs) - before
        changed = {name: float((values - others[name]).mean()) for name, values in also(candidate.outputs).items()}
        measured.append((_judge(method, ratio, difference, changed), model))
    best, model = min(
        measured,
        key=lambda entry: (not entry[0].kept, entry[0].ratio),
        default=(Int8Measurement(None, None, None, None, len(feeds["x"]), False, failed), rejector),
    )
    logging.getLogger("l2h").info("int8 rejector: %s", best.why)
    return model if best.kept else None, best


def _client_answers(fitted: FittedSystem, models: BundleModels, X: Array) -> ClassifierAnswers:
    """Return the client's answers as the device gets them: by its file where it has one."""
    if models.client.data is None:
        return fitted.client.answers(X, fitted.num_classes)
    part = models.client.part
    answer = exported_client(file_run(models.client.data, part), part, fitted.num_classes, fitted.labels)
    batches = [X[i : i + CHUNK] for i in range(0, len(X), CHUNK)]
    return ClassifierAnswers.join([ClassifierAnswers(*answer(batch), has_scores=True) for batch in batches])


def _server_labels(fitted: FittedSystem, models: BundleModels, X: Array, number: int) -> Labels:
    server = models.servers[fitted.servers[number].name]
    if server.data is None:
        return np.asarray(fitted.server_log_probability(X, number).argmax(axis=1))
    model, prepare = file_run(server.data, server.part), server.part.inputs.apply
    scores = [model(prepare(numbers_of(X)[i : i + CHUNK]))[0] for i in range(0, len(X), CHUNK)]
    return np.asarray(np.concatenate(scores).argmax(axis=1))


def _judge(method: str, ratio: float, difference: FloatArray, also: Mapping[str, float]) -> Int8Measurement:
    n = len(difference)
    rise = float(difference.mean())
    error = float(difference.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    kept, verdict = True, "kept"
    if ratio >= KEEP_BELOW:
        kept, verdict = False, "not kept, not faster"
    elif rise > STANDARD_ERRORS * error + 1e-12:  # a rise on one sample alone is just its standard error
        kept, verdict = False, "not kept, worse"
    why = f"{verdict}: {method}, {ratio:.2f} of the float time, risk {rise:+.4f} ± {error:.4f} on {n} samples"
    if also:
        why += f"; without the student's answers {also['two_ways']:+.4f}, the student's error {also['student']:+.4f}"
    return Int8Measurement(method, round(ratio, 4), rise, error, n, kept, why, dict(also) or None)


class _TimedModel:
    """A model as the device runs it, its outputs on the samples, and its time on one of them."""

    def __init__(self, model: ModelProto, feeds: Mapping[str, Array]) -> None:
        self.session = make_session(model.SerializeToString(), "rejector.onnx", 1)
        inputs = {entry.name: feeds[entry.name] for entry in self.session.get_inputs()}
        self.names = [entry.name for entry in self.session.get_outputs()]
        self.one_sample = {name: values[:1] for name, values in inputs.items()}
        parts = [
            run(self.session, self.names, {name: v[i : i + CHUNK] for name, v in inputs.items()}, "int8 rejector")
            for i in range(0, len(feeds["x"]), CHUNK)
        ]
        self.outputs = {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(self.names)}

    def same_client(self, other: _TimedModel) -> bool:
        """Return whether the client inside, if there is one, answers the same to the bit."""
        own = set(self.names) - {SCORES, STUDENT}
        return all(np.array_equal(self.outputs[name], other.outputs[name]) for name in own)

    def seconds(self, runs: int) -> float:
        """Return the time of one run on one sample, averaged over this many."""
        begun = time.perf_counter()
        for _ in range(runs):
            self.session.run(self.names, self.one_sample)
        return (time.perf_counter() - begun) / runs


def _time_ratio(original: _TimedModel, candidate: _TimedModel) -> float:
    """Return the candidate's time in units of the original's; repeats alternate, so that both meet the same load."""
    runs = max(3, int(_SECONDS / max(original.seconds(3), 1e-7)))
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(_REPEATS):
        for side in (0, 1) if i % 2 else (1, 0):
            times[side].append((original, candidate)[side].seconds(runs))
    return statistics.median(times[1]) / statistics.median(times[0])


def _quantise_model(model: ModelProto, method: str, feeds: Mapping[str, Array]) -> ModelProto:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    # reduce_range: processors without VNNI add pairs of products in 16 bits
    weights = {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}
    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder) / "float.onnx"), str(Path(folder) / "int8.onnx")
        onnx.save(model, source)
        try:
            with quiet(None):  # it advises a preparation that ONNX graphs from torch do not need
                if method == "dynamic":
                    quantize_dynamic(source, target, op_types_to_quantize=["Gemm", "MatMul"], **weights)
                else:
                    quantize_static(
                        source,
                        target,
                        _RangeSamples(feeds),
                        quant_format=QuantFormat.QDQ,
                        op_types_to_quantize=["Conv", "Gemm", "MatMul", "Relu", "MaxPool"],
                        activation_type=QuantType.QUInt8,
                        **weights,
                    )
        except Exception as error:  # the quantiser's own errors have no common base
            raise ConversionError(f"{type(error).__name__}: {error}") from error
        quantised = onnx.load(target)
    quantised.ir_version = max(model.ir_version, min(quantised.ir_version, 10))
    del quantised.graph.value_info[:]
    return quantised


class _RangeSamples:
    """Samples for the ranges of the activations, drawn evenly: a ``CalibrationDataReader`` of the quantiser."""

    def __init__(self, feeds: Mapping[str, Array]) -> None:
        n = len(feeds["x"])
        rows = np.unique(np.linspace(0, n - 1, min(n, _RANGE_SAMPLES)).astype(int))
        self.batches = (
            {name: values[rows[i : i + 32]] for name, values in feeds.items()} for i in range(0, len(rows), 32)
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self.batches, None)
