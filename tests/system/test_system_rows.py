"""A system does with rows that are read from a file what it does with an array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_maker import digits, settings
from sklearn.tree import DecisionTreeClassifier

from l2h import HelpSystem, RemoteServer
from l2h.data import Rows, StoredArray
from l2h.data.dataset import check_inputs
from l2h.errors import DataError
from l2h.rows import in_memory

Stored = Callable[[Any], StoredArray]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    def store(X: Any) -> StoredArray:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(path, X)
        return StoredArray(path)

    return store


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that goes through samples takes several batches for the digits."""
    monkeypatch.setattr("l2h.rows.CHUNK_BYTES", 37 * 64 * 4)


def test_verbs_give_the_same_numbers(systems: Any, stored: Stored, small_chunks: None) -> None:
    system, (_, calibration, test) = systems("fused"), digits()
    before = system.fitted
    try:
        found = []
        for keep in (np.asarray, stored):
            system.calibrate(keep(calibration[0]), calibration[1])
            answers = system.predict(keep(test[0]), limit="20%")
            held, report = system.fitted.calibration.held_out, system.evaluate(keep(test[0]), test[1])
            judged = system.judge(keep(test[0])).scores
            found.append((held.scores, answers.label, answers.probability, report.as_dict(), judged))
    finally:
        system.fitted = before
    for first, second in zip(*found, strict=True):
        np.testing.assert_equal(first, second)


def test_a_share_kept_for_calibration_is_the_same(stored: Stored, small_chunks: None) -> None:
    (X, y), _, _ = digits()
    server = RemoteServer(lambda inputs: inputs.reshape(len(inputs), -1)[:, :10].astype(float), version="1")
    found = []
    for samples in (X[:300], stored(X[:300])):
        client = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[300:400].reshape(100, -1), y[300:400])
        system = HelpSystem(client, server, settings=settings(), rejector_options={"width": 1})
        system.fit(samples, y[:300], calibration=0.2)
        found.append(system.fitted.calibration.held_out)
    assert len(found[0].client_correct) == 60
    for name in ("scores", "client_confidence", "server_correct"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))


def test_rows_are_checked_as_arrays_are(stored: Stored, small_chunks: None, systems: Any) -> None:
    X = np.zeros((500, 64), np.float32)
    X[321, 5] = np.nan
    with pytest.raises(DataError, match="1 value of X is NaN or infinite as float32, the first in row 321"):
        check_inputs(stored(X))
    assert isinstance(check_inputs(stored(X[:300])), Rows)
    for wrong in (X.astype(np.float64), np.zeros((5, 3), np.uint8)):
        with pytest.raises(DataError, match=r"uint8 images .* or float32"):
            check_inputs(stored(wrong))
    for empty in (X[:0], X[:, :0]):
        with pytest.raises(DataError, match="X is empty"):
            check_inputs(stored(empty))
    with pytest.raises(DataError, match=r"X has shape \(500,\), but one row for each sample is needed"):
        check_inputs(stored(X[:, 0]))
    with pytest.raises(DataError, match=r"inputs have shape \(1, 4, 4\)"):
        systems("fused").predict(stored(np.zeros((3, 1, 4, 4), np.uint8)))


def test_what_needs_all_samples_at_once_says_so(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    X = stored(np.zeros((50, 64), np.float32))
    assert in_memory(X, 5).shape == (50, 64)
    monkeypatch.setattr("l2h.rows.free_memory", lambda: 5 * X.nbytes - 1)
    assert np.asarray(X).shape == (50, 64)
    with pytest.raises(DataError, match=r"all 50 samples at once are needed here and take 64 KB, but 64 KB"):
        in_memory(X, 5)
