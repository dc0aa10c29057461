"""What the client of a bundle answers: its file's outputs, or a given classifier's, as labels and log-probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import ClientPart, Manifest
from l2h.bundle.sessions import Array, run
from l2h.classifiers import as_client, prepare_inputs, read_output, to_array
from l2h.errors import ClientError

#: Labels (n,), log-probabilities (n, K), and features (n, E) or None.
ClientOutput = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32] | None]
#: From a batch to its output.
ClientRun = Callable[[Array], ClientOutput]


def exported_client(session: Any, part: ClientPart, classes: int) -> ClientRun:
    """Return the function that runs the client's file on a batch."""
    assert part.input is not None
    assert part.output is not None
    assert part.file is not None
    file, name, features, feed, gives = part.file, part.input, part.features, part.feed, part.gives
    outputs = [part.output] if features is None else [part.output, features]

    def answer(X: Array) -> ClientOutput:
        values = run(session, outputs, {name: prepare_inputs(X, feed)}, file)
        try:
            label, log_p = read_output(to_array(values[0]), gives, len(X), classes)
        except ClientError as error:
            raise BundleError(f"{file} does not fit the inputs: {error}") from error
        if features is None:
            return label, log_p, None
        return label, log_p, np.asarray(values[1], dtype=np.float32).reshape(len(X), -1)

    return answer


def given_client(client: Any, manifest: Manifest) -> ClientRun:
    """Return the function that runs the user's own classifier on a batch, reading its output as in training."""
    part, classifier = manifest.client, as_client(client)
    if classifier.probabilities is None and part.gives in ("probability", "logits"):
        classifier.probabilities = part.gives == "probability"

    def answer(X: Array) -> ClientOutput:
        answers = classifier.answers(X, len(manifest.classes))
        if part.features is None:
            return answers.label, answers.log_probability, None
        if answers.embedding is None:
            raise BundleError("the rejector reads the client's last features, and the client given has none")
        return answers.label, answers.log_probability, answers.embedding

    return answer
