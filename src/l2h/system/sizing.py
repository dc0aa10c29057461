"""How large the rejector becomes: as its options say, or as a budget of the device allows."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from l2h.budgets import DEFAULT_BUDGET, Budget
from l2h.bundle.sessions import make_session
from l2h.classifiers import Classifier, OnnxClassifier, TorchClassifier
from l2h.errors import L2HError, ModelError, SettingsError
from l2h.export.classifiers import CLIENT
from l2h.export.models import rejector_to_onnx
from l2h.export.onnx import classifier_to_onnx
from l2h.methods import Learned
from l2h.models import build_rejector, within_budget
from l2h.training.counting import classifier_multiply_adds
from l2h.training.job import Job, RejectorInputs, RejectorSize

#: Options that set the size of a rejector.
SIZES = ("width", "hidden", "trunk", "depth", "stem", "middle")
#: Multiply-adds that stand in for those of a client that cannot be counted, or has fewer than :data:`NEXT_TO_NOTHING`.
ASSUMED, NEXT_TO_NOTHING = 100_000, 10_000
#: Of a search by time: multiply-adds that it begins with, those of a fast core in a second, and its steps.
_LEAST, _FASTEST, _HALVINGS = 1000.0, 3e10, 6
_REPEATS, _SECONDS = 15, 0.004
log = logging.getLogger("l2h")


def choose_budget(
    given: Budget | float | str | None, rejector: str | nn.Module, options: Mapping[str, Any], recipe: str
) -> Budget | None:
    """Return the budget in force; None where the options or the user's own module set the size, or the paper does."""
    sized = sorted(set(options) & set(SIZES))
    if given is None:
        named = isinstance(rejector, str) and recipe == "default" and not sized
        return Budget.parse(DEFAULT_BUDGET) if named else None
    if not isinstance(rejector, str):
        raise SettingsError(f"budget={given!r}: a rejector of your own has the size that it has")
    if sized:
        raise SettingsError(f"budget={given!r} sets the rejector's size: leave out {', '.join(sized)}")
    return Budget.parse(given)


def size_rejector(
    budget: Budget | None,
    rejector: str | nn.Module,
    options: Mapping[str, Any],
    method: Learned,
    client: Classifier,
    inputs: RejectorInputs,
    *,
    student: bool,
    heads: int = 2,
    second_opinion: bool = False,
) -> RejectorSize:
    """Return how large the rejector becomes; where the budget cannot be met, the error says what the smallest is."""
    if budget is None or not isinstance(rejector, str):
        return RejectorSize(options)
    classes = inputs.num_classes if student else 0
    reads = (inputs.shape, inputs.view_size, classes, heads, second_opinion)

    def fit(allowed: float) -> dict[str, Any]:
        return {**options, **within_budget(allowed, rejector, *reads)}

    note: dict[str, Any] = {"asked": str(budget), "assumed": None}
    if budget.unit == "seconds":
        timer = RejectorTimer(rejector, method, inputs, classes)
        chosen, seconds = _within_time(budget, fit, timer)
        return RejectorSize(chosen, note | {"seconds": seconds})
    allowed = budget.value
    if budget.unit == "client":
        counted = classifier_multiply_adds(client, inputs.shape, inputs.dtype)
        if counted is None or counted < NEXT_TO_NOTHING:
            work = "cannot be counted" if counted is None else f"are next to nothing ({counted:,})"
            note["assumed"] = f"the client's multiply-adds {work}: the budget is a multiple of {ASSUMED:,}"
            log.info("%s", note["assumed"])
            counted = ASSUMED
        allowed *= counted
    chosen = fit(allowed)
    has = ", ".join(f"{name} {value}" for name, value in chosen.items())
    log.info("a budget of %s, %s multiply-adds: the rejector has %s", budget, f"{allowed:,.0f}", has)
    return RejectorSize(chosen, note | {"multiply_adds": round(allowed)})


def size_method(method: Learned, budget: Budget, job: Job) -> Learned:
    """Give a method the largest net of a budget for the client and the servers of a job."""
    inputs, heads = job.rejector_inputs, 1 + len(job.servers)
    size = size_rejector(budget, method.net, {}, method, job.client, inputs, student=method.student, heads=heads)
    method.options, method.budget = size.options, size.budget
    return method


class RejectorTimer:
    """Times untrained rejectors for one input, with onnxruntime on one thread: their time is a matter of their size."""

    def __init__(self, kind: str, method: Learned, inputs: RejectorInputs, taught: int) -> None:
        self.kind, self.method, self.inputs, self.taught = kind, method, inputs, taught
        self.feeds = {"x": np.zeros((2, *inputs.shape), dtype=inputs.dtype)}
        if kind == "attached":
            even = -np.log(inputs.num_classes)
            self.feeds["log_probability"] = np.full((2, inputs.num_classes), even, dtype=np.float32)
        if kind == "attached" and inputs.embedding_size:
            self.feeds["embedding"] = np.zeros((2, inputs.embedding_size), dtype=np.float32)

    def seconds(self, options: Mapping[str, Any]) -> float:
        net = build_rejector(self.kind, self.inputs.shape, self.inputs.view_size, self.taught, **options)
        model = rejector_to_onnx([net], self.method, self.feeds)
        session = make_session(model.SerializeToString(), "rejector.onnx", 1)
        return _seconds(session, {entry.name: self.feeds[entry.name][:1] for entry in session.get_inputs()})


def classifier_seconds(classifier: Classifier, X: npt.NDArray[Any], num_classes: int) -> float | None:
    """Return the time of one input through a torch or ONNX model, with onnxruntime on one thread; None for others."""
    if not isinstance(classifier, OnnxClassifier | TorchClassifier):
        return None
    try:
        data = classifier_to_onnx(classifier, X[:2], CLIENT, num_classes=num_classes).data
    except L2HError as error:
        log.info("the client cannot be timed: %s", error)
        return None
    session = make_session(data or b"", CLIENT, 1)
    entry, *others = session.get_inputs()
    fed = classifier.feed(X.shape[1:]).apply(X[:1])
    kind = np.float32 if entry.type == "tensor(float)" else fed.dtype
    return None if others else _seconds(session, {entry.name: fed.astype(kind)})


def _seconds(session: Any, feeds: Mapping[str, npt.NDArray[Any]]) -> float:
    def run(times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            session.run(None, feeds)
        return (time.perf_counter() - begun) / times

    times = max(3, int(_SECONDS / max(run(10), 1e-7)))
    return min(run(times) for _ in range(_REPEATS))  # others that run here only add to it


def _within_time(
    budget: Budget, fit: Callable[[float], dict[str, Any]], timer: RejectorTimer
) -> tuple[dict[str, Any], float]:
    """Return the largest rejector that takes no longer than the budget here, and its time in seconds."""
    low, high = _LEAST, max(2 * _LEAST, _FASTEST * budget.value)
    options: dict[str, Any] | None = None
    while options is None:  # the smallest
        try:
            options = fit(low)
        except ModelError:
            low *= 2
    best = options, timer.seconds(options)
    if best[1] > budget.value:
        raise ModelError(
            f"a budget of {budget} cannot be met: the smallest rejector takes {best[1] * 1e6:.0f} us on this machine"
        )
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        options = fit(middle)
        seconds = best[1] if options == best[0] else timer.seconds(options)
        log.info("a rejector of at most %s multiply-adds takes %.0f us here", f"{middle:,.0f}", seconds * 1e6)
        if seconds <= budget.value:
            low, best = middle, (options, seconds)
        else:
            high = middle
    return best
