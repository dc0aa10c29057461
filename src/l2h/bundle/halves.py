"""The two halves of a bundle, verified and ready to run: the device's (client and rejector) and the server's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle import sessions
from l2h.bundle.manifest import Manifest, read_files
from l2h.bundle.parts import BundleError
from l2h.bundle.sessions import CHUNK, ModelRun, check_inputs, exported_client, file_run, run
from l2h.bundle.signing import read_verify_key
from l2h.classifiers.base import Array, Inputs, all_finite
from l2h.columns import Columns, EncodedTable, numbers_of
from l2h.decision import AnyCosts, Judgement, select_rejector
from l2h.errors import DataError, SettingsError
from l2h.files import read_npz

Labels = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
#: In place of the students' labels where no student answers.
_NOBODY: Labels = np.empty((0, 0), dtype=np.int64)


class _Half:
    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.input_shape: tuple[int, ...] = self.manifest.input.shape
        self.input_dtype: str = self.manifest.input.dtype
        self.classes: tuple[str, ...] = self.manifest.classes
        self.labels = self.manifest.codec
        self._dtype = np.dtype(self.input_dtype)
        self.columns = self.manifest.columns

    def check(self, X: npt.ArrayLike) -> Array:
        """Return samples as the bundle takes them, (n, ...); a single one gets its first axis.

        Raises:
            BundleError: another shape or type than the bundle's, no samples, or a value that is not finite.
        """
        return check_inputs(X, self.manifest.input, self._dtype)


class DeviceBundle(_Half):
    """Client and rejector, verified and ready to run. Calls from several threads are safe.

    Args:
        folder: the bundle; the files of servers need not be there.
        client: the classifier, where the bundle does not hold it: whatever :func:`l2h.as_client` takes.
        threads: how many one run of onnxruntime may use; one is best for small nets.
        verify_key: the public key of whoever signs bundles: its file, its text or its 32 bytes. One that is not signed
            with it is refused (``l2h sign``). Needs the extra ``signing``.

    Raises:
        BundleError: a file is missing or changed, a newer version wrote the bundle, the client is neither in it nor
            given, or the signature is missing or does not fit.

    Example:
        >>> bundle = DeviceBundle("bundles/digits")                       # doctest: +SKIP
        >>> numbers, judgement = bundle.judge(X)                          # doctest: +SKIP
        >>> labels = bundle.labels.decode(numbers)                        # doctest: +SKIP
        >>> which, costs = bundle.which(l2h.Costs(c_e=0.1))               # doctest: +SKIP
        >>> remote = judgement.remote(costs)                              # doctest: +SKIP
    """

    def __init__(
        self, folder: str | Path, *, client: Any = None, threads: int = 1, verify_key: str | Path | bytes | None = None
    ) -> None:
        self.verify_key = None if verify_key is None else read_verify_key(verify_key)
        super().__init__(Manifest.read(folder, self.verify_key))
        self.folder, self._given = Path(folder), client
        files = read_files(folder, self.manifest, "device")
        part, rejector = self.manifest.client, self.manifest.rejector
        self.costs = self.manifest.costs
        self.answerers = self.manifest.answerers
        self.second_opinion = self.manifest.second_opinion
        self._threads = threads
        if part.file is None and client is None:
            raise BundleError(
                f"{folder} does not hold its client, which could not be exported: "
                "give it with client=, any function that returns its scores or labels"
            )
        if part.file is not None and client is not None:
            raise BundleError(f"{folder} holds its client ({part.file}): leave out client=")
        self._client_file: ModelRun | None = None
        self._client = None if client is None else sessions.given_client(client, self.manifest)
        self._session = sessions.make_session(files[rejector.file], rejector.file, threads, files)
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._fused, self._file = rejector.fused, rejector.file
        self._outputs = [*(["log_probability"] if self._fused else []), "scores"]
        self._outputs += ["student"] if self.second_opinion else []
        self._check_graph()
        if not self._fused and part.file is not None:
            self._client_file = file_run(files[part.file], part, threads, files)
            self._client = exported_client(self._client_file, part, len(self.classes), self.labels)
        self._platt = rejector.platt
        self._for_every_price = [spec.costs is None for spec in rejector.specs]
        self._held_out = self._read_held_out(files)

    def successor(self, folder: str | Path) -> "DeviceBundle":
        """Return another bundle, loaded as this one was: with the same key, threads, and client if it needs one."""
        client = self._given if Manifest.read(folder, self.verify_key).client.file is None else None
        return DeviceBundle(folder, client=client, threads=self._threads, verify_key=self.verify_key)

    def check(self, X: Any) -> Any:
        """Return samples as the bundle takes them, (n, ...), or rows of a table; a single one gets its first axis.

        Raises:
            BundleError: another shape or type than the bundle's, no samples, or a value that is not finite; of a table
                a column that is missing or a value that cannot be used, by column and row.
        """
        if self.columns is None:
            return super().check(X)
        try:
            return self.columns.encode(X)
        except DataError as error:
            raise BundleError(str(error)) from error

    def judge(self, X: Any, which: int = 0) -> tuple[Labels, Judgement]:
        """Return the client's answers as class numbers, (n,), and what a rejector makes of them; each is run once.

        Args:
            X: (n, ...) or one sample; a table, or one row of it as a mapping, where the bundle has columns.
            which: number of the rejector, as :meth:`which` returns it.

        Raises:
            BundleError: inputs that do not fit, or scores that are not finite.
        """
        label, _, judgement = self.examine(X, which)
        return label, judgement

    def examine(self, X: Any, which: int = 0) -> tuple[Labels, Labels | None, Judgement]:
        """Return what :meth:`judge` returns, and between them the student's answers; None where it may not answer."""
        self._check_which(which)
        x = self.check(X)
        if len(x) <= CHUNK:
            label, scores, student = self._run(x)
        else:
            parts = [self._run(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
            label, scores, student = (np.concatenate(side) for side in zip(*parts, strict=True))
        count = len(self._for_every_price)
        if scores.shape[1:] != (count, len(self.answerers)) or not all_finite(scores):
            raise BundleError(f"{self._file} gives scores {scores.shape} that are not finite or of another shape")
        judgement = self.judgement(scores[:, which], which)
        if not self.second_opinion:
            return label, None, judgement
        # As numbers without a sign those below 0 are the largest.
        fits = student.shape == (len(x), count) and student.dtype == np.int64
        if not fits or student.view(np.uint64).max() >= len(self.classes):
            raise BundleError(f"{self._file} gives {student.dtype} {student.shape} that are no labels of the classes")
        return label, student[:, which], judgement

    def which(self, costs: AnyCosts | None = None, which: int | None = None) -> tuple[int, AnyCosts]:
        """Return the number of the rejector for these prices, and the prices in use: the bundle's where None.

        Raises:
            SettingsError: there is none, or several; the message lists what there is.
        """
        return select_rejector(self.manifest.rejector.specs, self.costs if costs is None else costs, self.costs, which)

    def held_out(self, which: int = 0) -> Judgement | None:
        """Return what the rejector made of held-out samples, for bounds on asking; None where there are none."""
        self._check_which(which)
        return None if self._held_out is None else self.judgement(self._held_out[which], which)

    def _check_which(self, which: int) -> None:
        if not 0 <= which < len(self._for_every_price):
            raise SettingsError(f"which={which}: there are rejectors 0 to {len(self._for_every_price) - 1}")

    def _run(self, X: Inputs) -> tuple[Labels, Scores, Labels]:
        """Return the client's labels, the rejectors' scores, and the students' labels, empty where there are none."""
        x = numbers_of(X)
        if self._fused:
            outputs = run(self._session, self._outputs, {"x": x}, self._file)
            log_p = outputs[0]
            if not all_finite(log_p):
                raise BundleError(f"{self._file}: the client's output is not finite")
            return log_p.argmax(axis=1), outputs[1], outputs[2] if self.second_opinion else _NOBODY
        assert self._client is not None
        label, log_p, embedding = self._client(X)
        values: dict[str, Any] = {"x": x, "log_probability": log_p, "embedding": embedding}
        feeds = {name: values[name] for name in self._inputs}
        outputs = run(self._session, self._outputs, feeds, self._file)
        return label, outputs[0], outputs[1] if self.second_opinion else _NOBODY

    def model_calls(self, X: Inputs) -> Callable[[], None]:
        """Return a function that makes the model calls of :meth:`judge` alone, to compare its time with theirs."""
        session, part, outputs = self._session, self.manifest.client, self._outputs
        if self._fused:
            return lambda: session.run(outputs, {"x": numbers_of(X)})
        client = self._client_file
        if client is None:
            raise BundleError("the client of this bundle is given from outside: its calls cannot be told apart")
        x = X if isinstance(X, EncodedTable) else part.inputs.apply(X)
        assert self._client is not None
        _, log_p, embedding = self._client(X)
        values: dict[str, Any] = {"x": numbers_of(X), "log_probability": log_p, "embedding": embedding}
        feeds = {name: values[name] for name in self._inputs}

        def both() -> None:
            client(x)
            session.run(outputs, feeds)

        return both

    def judgement(self, scores: Scores, which: int = 0) -> Judgement:
        """Return what a rejector's raw scores (n, J) say with the calibration of this bundle."""
        if not self._for_every_price[which]:
            return Judgement(scores, answerers=self.answerers)
        make = Judgement.from_one_input if len(scores) == 1 else Judgement.from_heads
        return make(scores, self._platt[which], self.answerers)

    def _check_graph(self) -> None:
        """See that the rejector's inputs and outputs are those that the manifest names."""
        outputs = {entry.name for entry in self._session.get_outputs()}
        known = {"x"}
        if not self._fused and self.manifest.rejector.uses_client:
            known |= {"log_probability"} | ({"embedding"} if self.manifest.client.features else set())
        wanted = set(self._outputs)
        if not set(self._inputs) <= known or not wanted <= outputs:
            raise BundleError(
                f"{self._file} takes {', '.join(self._inputs)} and gives {', '.join(sorted(outputs))}; "
                f"expected {', '.join(sorted(known))} and {', '.join(sorted(wanted))}"
            )

    def _read_held_out(self, files: dict[str, bytes]) -> Scores | None:
        part = self.manifest.calibration
        if part is None:
            return None
        try:
            # Written without compression: no array is larger than its file.
            scores = read_npz(files[part.file], lambda _: ["scores"], most=len(files[part.file]))["scores"]
        except ValueError as error:
            raise BundleError(f"{part.file} cannot be read: {error}") from error
        expected = (len(self._for_every_price), part.n, len(self.answerers))
        if scores.shape != expected or scores.dtype != np.float32 or not np.isfinite(scores).all():
            raise BundleError(f"{part.file} holds {scores.dtype} {scores.shape}, expected finite float32 {expected}")
        return np.asarray(scores)


class ServerBundle(_Half):
    """A server, verified and ready to run. Calls from several threads are safe.

    Args:
        folder: the bundle; the files of the device and of other servers need not be there.
        server: its name, where the bundle has several.
        threads: how many one run of onnxruntime may use.

    Raises:
        BundleError: the file is missing or changed, a newer version wrote the bundle, it does not hold the server, or
            it has several and none is named.

    Example:
        >>> bundle = ServerBundle("bundles/digits")                       # doctest: +SKIP
        >>> scores = bundle.run(X)                                        # doctest: +SKIP
        >>> labels = bundle.labels.decode(scores.argmax(axis=1))          # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, *, server: str | None = None, threads: int = 1) -> None:
        super().__init__(Manifest.read(folder))
        server = self.manifest.which_server(server)
        files = read_files(folder, self.manifest, "server", server)
        part = self.manifest.servers[server]
        if part.file is None:
            what = f"no server {server!r}" if self.manifest.named else "no server"
            raise BundleError(f"{folder} holds {what}: the one of the training could not be exported")
        self.name, self.version = self.manifest.model_of(server), self.manifest.version
        self._file, self._inputs = part.file, part.preprocessing
        self._model = file_run(files[part.file], part, threads, files)
        #: The columns that the numbers are decoded to, where the file takes them by name.
        self.decoded = None if part.feed is None else self.columns

    def run(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return scores (n, K), the largest of which is the answer.

        Raises:
            BundleError: inputs that do not fit, or scores of another shape.
        """
        x = self.check(X)
        if self.decoded is not None:
            (scores,) = self._model(self._decode(x, self.decoded))
        else:
            (scores,) = self._model(x if self._inputs is None else self._inputs.apply(x))
        if scores.shape != (len(x), len(self.classes)):
            raise BundleError(f"{self._file} gives {scores.shape}, expected {(len(x), len(self.classes))}")
        return np.asarray(scores, dtype=np.float32)

    @staticmethod
    def _decode(x: Array, columns: Columns) -> EncodedTable:
        try:
            return EncodedTable(x, columns.decode(x), columns)
        except DataError as error:
            raise BundleError(str(error)) from error
