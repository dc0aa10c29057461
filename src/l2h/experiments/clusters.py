"""Run trainings on a Ray cluster: reach it, ask for CPUs and GPUs, pass on results as they come, say what failed."""

import contextlib
import logging
import os
import platform
import re
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import l2h
from l2h.errors import L2HError, L2HWarning, RunError, SettingsError, about, missing_extra
from l2h.settings import Settings

log = logging.getLogger("l2h")
#: How often a task is started again after its process or its node was lost.
RETRIES = 5
#: How often a head is asked for a connection before it counts as not reached.
CONNECTIONS = 3
#: Seconds in which somebody must answer at an address.
PATIENCE = 5.0
HERE, ADDRESS = "ray", "ray://"


@dataclass(frozen=True)
class TaskRequest:
    """What one task is given: CPUs, GPUs, and the device that its settings name there."""

    cpus: int
    gpus: int
    device: str

    def place(self, settings: Settings) -> Settings:
        """Return the settings of a training in such a task."""
        return replace(settings, device=self.device, threads=self.cpus)


@dataclass(frozen=True)
class ClusterWork:
    """Tasks that belong together: parts, and what must be prepared for them.

    All are functions of modules, with ``functools.partial`` where they have arguments. The preparation returns what
    stays on the cluster, which every part is then called with, and what comes back. Without a preparation, parts are
    called with nothing.
    """

    key: Any  # a number is that of a seed in messages
    parts: Mapping[Any, Callable[..., Any]]
    prepare: Callable[[], tuple[Any, Any]] | None = None


class TaskResult(NamedTuple):
    """What came back of a task: ``part`` is None where it is the preparation's."""

    key: Any
    part: Any
    value: Any


def check_cluster(on: str) -> None:
    """Raise a ``SettingsError`` where ``on`` is not of a form that :func:`ray_cluster` takes."""
    if on != HERE and not re.fullmatch(r"ray://\S+:\d+", on):
        raise SettingsError(f"--on {on}: give ray, or the address of a cluster as ray://HOST:10001")


@contextlib.contextmanager
def ray_cluster(on: str) -> Iterator["RayCluster"]:
    """Give the cluster at ``ray://HOST:PORT``; for ``ray`` that of RAY_ADDRESS or of this machine, or a new one here.

    A connection that was there before is used and kept.

    Raises:
        SettingsError: ``on`` is neither of these.
        MissingExtraError: Ray is not installed.
        RunError: nobody answers at the address, or with another version of Ray or Python.
    """
    check_cluster(on)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU names the CPU by itself
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise missing_extra(f"--on {on} needs the package 'ray'", "ray") from error
    address = on if on != HERE else os.environ.get("RAY_ADDRESS", "")
    if ray.is_initialized():
        yield RayCluster(ray, address)
        return
    # What Ray tells of lost processes it writes to stdout, which belongs to results.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            _require_somebody(address)
            _connect(ray, on)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()  # of what it began
            raise RunError(_why_not_reached(address or "a Ray of this machine", error)) from error
        try:
            yield RayCluster(ray, address)
        finally:
            ray.shutdown()


@contextlib.contextmanager
def reached(on: str | None, settings: Settings) -> Iterator["RayCluster | None"]:
    """Give the cluster of ``--on``, which has what these settings ask for; None where work stays on this machine."""
    if on is None:
        yield None
        return
    with ray_cluster(on) as cluster:
        cluster.request(settings)
        yield cluster


def at_home(folder: str) -> contextlib.AbstractContextManager[None]:
    """Return a block in the command's folder, against which its paths are read, where this machine has one."""
    return contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext()


def last_line(error: Exception) -> str:
    """Return the last line of what an error of Ray says: after its traces that is the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1]


class RayCluster:
    """A cluster that is reached: the Ray module, and tasks run through it."""

    def __init__(self, ray: Any, address: str) -> None:
        self.ray, self.address = ray, address
        self._remote = ray.remote(_run_task)
        self._home = _Home(os.getcwd(), _versions())
        self._alive, self._looked = len(self._nodes()), time.monotonic()

    def request(self, settings: Settings) -> TaskRequest:
        """Return what a training with these settings asks for: a CPU per thread, and a GPU where its device is one.

        Raises a :class:`SettingsError` where no node has that.
        """
        device, cpus, nodes = settings.device, settings.threads or 1, self._nodes()
        if device not in ("auto", "cpu", "cuda"):
            raise SettingsError(f"device={device!r}: a cluster chooses the GPU of a task by itself, give cuda")
        most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
        if device == "auto":
            device = "cuda" if most["GPU"] >= 1 else "cpu"
        if device == "cuda" and most["GPU"] < 1:
            raise SettingsError(f"device='cuda': the cluster has no GPU ({self.describe()}); give --device cpu")
        if cpus > most["CPU"]:
            raise SettingsError(f"threads={cpus}: no node of the cluster has so many CPUs ({self.describe()})")
        return TaskRequest(cpus, int(device == "cuda"), device)

    def describe(self) -> str:
        """Return nodes, CPUs and GPUs in words."""
        nodes = self._nodes()
        cpus, gpus = (int(sum(node.get(name, 0.0) for node in nodes)) for name in ("CPU", "GPU"))
        return f"nodes: {len(nodes)}, CPUs: {cpus}, GPUs: {gpus}"

    def slots(self, request: TaskRequest) -> int:
        """Return how many such tasks run at once, at least one."""
        each = [
            min(node.get("CPU", 0.0) // request.cpus, node.get("GPU", 0.0) // request.gpus if request.gpus else 1e9)
            for node in self._nodes()
        ]
        return max(1, int(sum(each)))

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def run(self, works: Iterable[ClusterWork], request: TaskRequest) -> Iterator[TaskResult]:
        """Run all tasks, and give what comes back of each as it comes.

        As many works are begun as the cluster has room for at the moment, so that what is prepared for them does not
        pile up. What a lost node was doing, and what was prepared there, is done again elsewhere. Raises the error of a
        task where L2H raised it there, and a :class:`RunError` where Ray gave up.
        """
        try:
            yield from self._run(works, request)
        except ConnectionError as error:
            raise RunError(
                f"the cluster at {self.address} is gone ({_first_line(error)}); the same command goes on where it was"
            ) from error

    def _run(self, works: Iterable[ClusterWork], request: TaskRequest) -> Iterator[TaskResult]:
        left = deque(works)
        running: dict[Any, tuple[ClusterWork, Any]] = {}
        log.info("Ray: %s", self.describe())
        while left or running:
            if left:
                begun = {id(work) for work, _ in running.values()}
                for _ in range(min(len(left), self.slots(request) - len(begun))):
                    work = left.popleft()
                    running |= {reference: (work, part) for part, reference in self._begin(work, request)}
            finished = self._finished(list(running))
            self._watch_nodes()
            for reference in finished:
                work, part = running.pop(reference)
                title = f"seed {work.key}" if isinstance(work.key, int) else str(work.key)
                reply = self._fetch(reference, title)
                for text in reply.warnings:
                    log.warning("%s: %s", title, text)
                yield TaskResult(work.key, part, reply.value)

    def _begin(self, work: ClusterWork, request: TaskRequest) -> Iterator[tuple[Any, Any]]:
        given = {"num_cpus": request.cpus, "num_gpus": request.gpus, "max_retries": RETRIES}
        kept = []
        if work.prepare is not None:
            stays, reply = self._remote.options(**given, num_returns=2).remote(self._home, True, work.prepare)
            kept.append(stays)
            yield None, reply
        for part, function in work.parts.items():
            yield part, self._remote.options(**given).remote(self._home, False, function, *kept)

    def _finished(self, references: list[Any]) -> list[Any]:
        # With a timeout, since an interrupt is heard between two waits only.
        while not self._ready(references, 1, 1.0):
            self._watch_nodes()
        return self._ready(references, len(references), 0.0)

    def _watch_nodes(self) -> None:
        if time.monotonic() < self._looked + 1.0:
            return
        before, self._alive, self._looked = self._alive, len(self._nodes()), time.monotonic()
        if self._alive < before:
            log.warning("a node is lost (%s): what it did is done again", self.describe())

    def _ready(self, references: list[Any], count: int, seconds: float) -> list[Any]:
        ready: list[Any] = self.ray.wait(references, num_returns=count, timeout=seconds)[0]
        return ready

    def _fetch(self, reference: Any, title: str) -> "_Reply":
        failures = self.ray.exceptions
        try:
            reply: _Reply = self.ray.get(reference)
        except failures.RayError as error:
            cause = error.cause if isinstance(error, failures.RayTaskError) else error
            lacking = re.search(r"No module named '([\w.]+)'", str(error))
            if isinstance(cause, L2HError):
                raise cause from None
            if lacking is not None and isinstance(cause, failures.RayError | ModuleNotFoundError):
                raise RunError(
                    f"a node lacks the package {lacking[1]!r}: install there what is installed here"
                ) from error
            if not isinstance(cause, failures.RayError):
                raise
            raise RunError(f"{title}: {_why_lost(cause, failures)}; the same command goes on where it was") from error
        return reply


@dataclass(frozen=True)
class _Home:
    """Where tasks come from: its folder, against which paths are read, and its versions."""

    folder: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class _Reply:
    """What comes back of a task, with what it warned of."""

    value: Any
    warnings: list[str] = field(default_factory=list)


def _run_task(home: _Home, prepares: bool, function: Callable[..., Any], *kept: Any) -> Any:
    """Run a task on a node, in the folder of the same name if it has one; return a reply, for errors see :meth:`run`.

    A function that ``prepares`` returns a pair, whose first stays on the cluster.
    """
    import ray

    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    node = f"node {ray.util.get_node_ip_address()}"
    try:
        with about(node), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", L2HWarning)
            _require_versions(home.versions)
            with at_home(home.folder):
                value = function(*kept)
    except OSError as error:  # a file of the node that is missing, or its full disk
        raise RunError(f"{node}: {error}") from error
    except Exception as error:
        # What others define may not survive being sent: then Ray would take the process for lost.
        if type(error).__module__.split(".")[0] in ("builtins", "l2h"):
            raise
        raise RunError(f"{node}: {type(error).__name__}: {error}") from None
    finally:
        log.removeHandler(handler)
    told += [str(one.message) for one in caught]
    return (value[0], _Reply(value[1], told)) if prepares else _Reply(value, told)


def _versions() -> dict[str, str]:
    """Return what results depend on; of torch not the build, which tells CPU from GPU."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "l2h": l2h.__version__, **{n: version(n).split("+")[0] for n in ("torch", "numpy")}}


def _require_versions(home: Mapping[str, str]) -> None:
    for name, there in _versions().items():
        if there != home[name]:
            raise RunError(f"it has {name} {there}, and this command {home[name]}: install the same on both sides")


def _connect(ray: Any, on: str) -> None:
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if on == HERE:
            ray.init(include_dashboard=False, **quiet)
            return
        for left in reversed(range(CONNECTIONS)):
            try:
                ray.init(on, **quiet)
                return
            except ConnectionAbortedError:  # the process that a head starts for each client ends now and then
                ray.shutdown()
                if not left:
                    raise


def _require_somebody(address: str) -> None:
    """Raise an ``OSError`` where nobody listens: Ray itself would try for a minute."""
    found = re.fullmatch(r"(?:ray://)?\[?(\S+?)\]?:(\d+)", address)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), PATIENCE).close()


def _why_not_reached(address: str, error: Exception) -> str:
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", str(error))
    if len(versions) == 2:
        (ray, python), (own_ray, own_python) = versions
        return (
            f"{address} runs Ray {ray} with Python {python}, and here is Ray {own_ray} with Python {own_python}: "
            "install the same on both sides"
        )
    return (
        f"{address} cannot be reached ({_first_line(error)}): is a head started there (ray start --head), is its port "
        "open, and does its token lie here (~/.ray/auth_token, with RAY_AUTH_MODE=token)?"
    )


def _why_lost(error: Exception, failures: Any) -> str:
    if isinstance(error, failures.OutOfMemoryError):
        return "a node has too little memory; more CPUs per task (--set threads=2) leave room for fewer at once"
    if isinstance(error, failures.OutOfDiskError | failures.ObjectStoreFullError):
        return "the disk of a node is full, and its object store too: make room there"
    if isinstance(error, failures.WorkerCrashedError | failures.NodeDiedError):
        return f"lost with its node or process {RETRIES + 1} times ({_first_line(error)})"
    return f"Ray gave it up ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    """Return what an error says in its first line, and in the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
