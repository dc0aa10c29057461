"""What a system is calibrated on: samples kept from all training, or those that stopped the rejector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clouds import X_TEST, Y_TEST, X, Y, make, samples, scores

import l2h
from l2h.errors import DataError, L2HWarning, SettingsError
from l2h.fitted import FittedSystem
from l2h.system.steps import keep_back

PROMISE = "50%@90%"


def weights(fitted: FittedSystem) -> dict[str, np.ndarray]:
    (server,) = fitted.servers
    assert server.network is not None
    both = {**server.network.state_dict(), **{f"r/{n}": t for n, t in fitted.rejectors.state_dict().items()}}
    return {name: tensor.detach().numpy() for name, tensor in both.items()}


def test_nothing_is_trained_on_what_fit_keeps_for_calibration() -> None:
    """Other samples in these rows change the calibration and no weight."""
    *_, (kept, labels) = keep_back(make(scores), X, Y, None, 0.25)
    assert len(kept) == len(labels) == pytest.approx(len(X) / 4, abs=3)
    rows = np.flatnonzero((X[:, None] == kept[None]).all(axis=-1).any(axis=1))
    changed = X.copy()
    changed[rows] = -X[rows]
    one, other = (make(scores).fit(data, Y, calibration=0.25).require_fitted() for data in (X, changed))
    assert one.calibration is not None
    assert other.calibration is not None
    assert one.calibration.fresh
    assert one.calibration.held_out.client_correct.shape == (len(kept),)
    for name, tensor in weights(one).items():
        np.testing.assert_array_equal(tensor, weights(other)[name], err_msg=name)
    assert not np.array_equal(one.calibration.platt, other.calibration.platt)
    alone = make(scores).fit(np.delete(X, rows, axis=0), np.delete(Y, rows)).calibrate(X[rows], Y[rows])
    found = alone.require_fitted().calibration
    assert found is not None
    np.testing.assert_array_equal(found.platt, one.calibration.platt)


def test_held_out_rows_are_counted_among_those_that_are_left() -> None:
    held = np.arange(0, 240, 3)
    inputs, labels, rows, (kept, _) = keep_back(make(scores), X, Y, held, 0.2)
    assert rows is not None
    expected = {x.tobytes() for x in X[held]} - {x.tobytes() for x in kept}
    assert {x.tobytes() for x in inputs[rows]} == expected
    assert len(inputs) + len(kept) == len(X)
    assert len(labels) == len(inputs)


def test_rows_of_a_table_and_labels_in_words_are_kept_back_too() -> None:
    table = {"height": X[:, 0].astype(float), "colour": np.where(X[:, 1] > 0, "red", "blue")}
    words = np.array(["ant", "bee", "cow"])[Y]
    inputs, labels, _, (kept, told) = keep_back(make(scores), table, words, None, 0.25)
    assert len(inputs) + len(kept) == len(X)
    assert sorted([*labels, *told]) == sorted(words)
    assert sorted([*inputs.columns["height"], *kept.columns["height"]]) == sorted(table["height"])
    assert set(told) == set(words)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SettingsError, match="calibration="):
        make(scores).fit(X, Y, calibration=share)


def test_a_share_of_too_few_samples_is_refused() -> None:
    with pytest.raises(DataError, match="is none: give more"):
        make(scores).fit(X[:9], Y[:9], calibration=0.01)


def test_a_guarantee_on_samples_that_stopped_the_rejector_is_warned_of(tmp_path: Path) -> None:
    system = make(scores).fit(X, Y)
    system.predict(X_TEST, limit="50%")
    with pytest.warns(L2HWarning, match=r"may not hold.*fit\(X, y, calibration=0.1\)"):
        system.predict(X_TEST, limit=PROMISE)
    with pytest.warns(L2HWarning, match="may not hold"):
        system.evaluate(X_TEST, Y_TEST, limit="50%", rule="guaranteed")
    loaded = l2h.load(system.save(tmp_path / "run"), client=scores)
    with pytest.warns(L2HWarning, match="may not hold"):
        loaded.predict(X_TEST, limit=PROMISE)
    loaded.calibrate(*samples(100, 5)).save(tmp_path / "run")
    l2h.load(tmp_path / "run", client=scores).predict(X_TEST, limit=PROMISE)
    make(scores).fit(X, Y, calibration=0.25).predict(X_TEST, limit=PROMISE)
