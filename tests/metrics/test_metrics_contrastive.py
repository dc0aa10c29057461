"""The contrastive table against a loop over the samples."""

import math

import numpy as np
import pytest

from l2h.errors import DataError
from l2h.metrics import contrastive, reject_rate_per_class


def test_the_table_is_that_of_a_loop_over_the_samples() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 40))
        client, server, remote = rng.random((3, n)) < rng.random((3, 1))
        table = contrastive(client, server, remote)
        joint = 0
        for side, wanted in ((table.local, False), (table.remote, True)):
            members = [i for i in range(n) if remote[i] == wanted]
            m_right = sum(bool(client[i]) for i in members)
            e_right = sum(bool(server[i]) for i in members)
            joint += e_right if wanted else m_right
            # Each is one quotient of two counts.
            assert side.ratio == pytest.approx(len(members) / n, abs=1e-15)
            if members:
                assert side.client == pytest.approx(m_right / len(members), abs=1e-15)
                assert side.server == pytest.approx(e_right / len(members), abs=1e-15)
                assert side.difference == pytest.approx((e_right - m_right) / len(members), abs=1e-15)
        assert table.joint == pytest.approx(joint / n, abs=1e-15)


@pytest.mark.parametrize("sent", [False, True])
def test_an_empty_side_has_no_accuracy(sent: bool) -> None:
    table = contrastive([True, False], [True, True], [sent, sent])
    empty, full = (table.local, table.remote) if sent else (table.remote, table.local)
    assert (empty.ratio, empty.client, empty.server, empty.difference) == (0.0, None, None, None)
    assert (full.ratio, full.client, full.server) == (1.0, 0.5, 1.0)
    assert table.joint == (1.0 if sent else 0.5)
    assert set(table.as_dict()) == {"local", "remote"}
    assert table.as_dict()["remote" if sent else "local"] == {"ratio": 1.0, "client": 0.5, "server": 1.0}


def test_joint_accuracy_is_the_ratio_weighted_mean_of_the_sides() -> None:
    rng = np.random.default_rng(1)
    client, server, remote = rng.random((3, 1000)) < 0.6
    table = contrastive(client, server, remote)
    # Two products of doubles below 1.
    expected = table.local.ratio * table.local.client + table.remote.ratio * table.remote.server
    assert table.joint == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    "arrays",
    [
        ([], [], []),
        ([True], [True, False], [True]),
        ([[True]], [[True]], [[True]]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: tuple[list[bool], ...]) -> None:
    with pytest.raises(DataError):
        contrastive(*arrays)


def test_the_reject_rate_of_each_class_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(2)
    y, remote = rng.integers(0, 5, 200), rng.random(200) < 0.3
    rates = reject_rate_per_class(remote, y, 6)
    assert rates.shape == (6,)
    for k in range(5):
        sent = [bool(r) for r, label in zip(remote, y, strict=True) if label == k]
        assert rates[k] == sum(sent) / len(sent)
    assert math.isnan(rates[5])
