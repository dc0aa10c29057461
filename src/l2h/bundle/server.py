"""The server's half of a bundle."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import Manifest
from l2h.bundle.sessions import Array, check_inputs, make_session, run
from l2h.bundle.verifying import read_side


class ServerBundle:
    """The server, verified and ready to run. Calls from several threads are safe.

    Args:
        folder: the bundle; the device's files need not be there.
        threads: how many one run of onnxruntime may use.

    Raises:
        BundleError: the file is missing or changed, a newer version wrote the bundle, or it holds no server.

    Example:
        >>> scores = ServerBundle("bundles/digits").run(X)                # doctest: +SKIP
        >>> labels = scores.argmax(axis=1)                                # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        self.manifest: Manifest
        self.manifest, files = read_side(folder, "server")
        part = self.manifest.server
        if part.file is None:
            raise BundleError(f"{folder} holds no server: the one of the training could not be exported")
        self.name, self.version = self.manifest.name, self.manifest.version
        self.input_shape: tuple[int, ...] = self.manifest.input.shape
        self.input_dtype: str = self.manifest.input.dtype
        self.classes: tuple[str, ...] = self.manifest.classes
        self._dtype = np.dtype(self.input_dtype)
        self._file, self._input, self._output = part.file, part.input, [part.output]
        self._session = make_session(files[part.file], part.file, threads)
        inputs = {entry.name for entry in self._session.get_inputs()}
        outputs = {entry.name for entry in self._session.get_outputs()}
        if inputs != {part.input} or part.output not in outputs:
            raise BundleError(
                f"{part.file} takes {', '.join(sorted(inputs))} and gives {', '.join(sorted(outputs))}; "
                f"expected {part.input} and {part.output}"
            )

    def check(self, X: npt.ArrayLike) -> Array:
        """Return samples as the bundle takes them; raises as :meth:`l2h.bundle.DeviceBundle.check`."""
        return check_inputs(X, self.manifest.input, self._dtype)

    def run(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return scores (n, K), the largest of which is the answer.

        Raises:
            BundleError: inputs that do not fit, or scores of another shape.
        """
        x = self.check(X)
        (scores,) = run(self._session, self._output, {self._input: x}, self._file)
        if scores.shape != (len(x), len(self.classes)):
            raise BundleError(f"{self._file} gives {scores.shape}, expected {(len(x), len(self.classes))}")
        return np.asarray(scores, dtype=np.float32)
