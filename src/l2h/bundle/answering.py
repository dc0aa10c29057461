"""What the client of a bundle says: its file's outputs, or a given classifier's, as labels and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import ClientPart, Manifest
from l2h.bundle.sessions import run
from l2h.classifiers import Classifier, as_client, prepare_inputs, read_output, to_array
from l2h.errors import ClientError

Array = npt.NDArray[Any]
#: Labels (n,), log-probabilities (n, K), and features (n, E) or None.
Said = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32] | None]


def of_session(session: Any, part: ClientPart, classes: int) -> Callable[[Array], Said]:
    """Return how the client's file answers a batch."""
    assert part.input is not None
    assert part.output is not None
    assert part.file is not None
    file, name, features, feed, gives = part.file, part.input, part.features, part.feed, part.gives
    outputs = [part.output] if features is None else [part.output, features]

    def answer(X: Array) -> Said:
        found = run(session, outputs, {name: prepare_inputs(X, feed)}, file)
        try:
            label, log_p = read_output(to_array(found[0]), gives, len(X), classes)
        except ClientError as error:
            raise BundleError(f"{file} does not fit the inputs: {error}") from error
        if features is None:
            return label, log_p, None
        return label, log_p, np.asarray(found[1], dtype=np.float32).reshape(len(X), -1)

    return answer


def of_given(client: Any, manifest: Manifest) -> Callable[[Array], Said]:
    """How a classifier given by the user answers a batch; read as the one of the training was."""
    part, given = manifest.client, as_client(client)
    if given.probabilities is None and part.gives in ("probability", "logits"):
        given.probabilities = part.gives == "probability"
    return lambda X: _given(given, part, X, len(manifest.classes))


def _given(client: Classifier, part: ClientPart, X: Array, classes: int) -> Said:
    answers = client.answers(X, classes)
    if part.features is None:
        return answers.label, answers.log_probability, None
    if answers.embedding is None:
        raise BundleError("the rejector reads the client's last features, and the client given has none")
    return answers.label, answers.log_probability, answers.embedding
