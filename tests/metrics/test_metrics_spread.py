"""Several seeds against the statistics module."""

import json
import statistics

import numpy as np
import pytest

from l2h.errors import DataError
from l2h.metrics import Interval, spread, spread_of_reports


def test_the_spread_is_that_of_the_statistics_module() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 30):
        values = rng.normal(0.3, 0.05, n).tolist()
        got = spread(values)
        # Sums of at most thirty numbers.
        assert got.mean == pytest.approx(statistics.fmean(values), rel=1e-13)
        assert got.std == pytest.approx(statistics.stdev(values), rel=1e-12)
        assert got.sem == pytest.approx(statistics.stdev(values) / n**0.5, rel=1e-12)
        assert got.n == n
        assert str(got) == f"{got.mean:.4f} ± {got.sem:.4f}"


def test_one_seed_has_a_mean_and_no_spread() -> None:
    got = spread([0.25])
    assert got.as_dict() == {"mean": 0.25, "std": None, "sem": None, "n": 1}
    assert str(got) == "0.2500"


def test_no_seed_is_refused() -> None:
    with pytest.raises(DataError):
        spread([])
    with pytest.raises(DataError):
        spread_of_reports([])


def test_reports_are_merged_in_their_own_nesting() -> None:
    reports = [
        {
            "dataset": "cifar10",
            "ok": True,
            "risk": {"system": s, "confidence": c},
            "deep": {"er": {"x": 2 * s}},
            **extra,
        }
        for s, c, extra in ((0.25, 0.5, {"only": 1.0}), (0.5, None, {}), (0.75, 0.5, {}))
    ]
    merged = spread_of_reports(reports)
    system = merged["risk"]["system"]
    assert system == spread([0.25, 0.5, 0.75]).as_dict()
    assert merged["deep"]["er"]["x"] == spread([0.5, 1.0, 1.5]).as_dict()
    # Missing in one seed: no mean over the others.
    assert merged["risk"]["confidence"] is None
    assert "only" not in merged
    # Neither words nor truth values have a mean.
    assert "dataset" not in merged
    assert "ok" not in merged
    assert json.loads(json.dumps(merged, allow_nan=False)) == merged


def test_equal_seeds_have_no_spread() -> None:
    got = spread([0.5, 0.5, 0.5])
    assert (got.mean, got.std, got.sem) == (0.5, 0.0, 0.0)


def test_a_corrected_chance_decides_what_is_clear_before_the_interval_does() -> None:
    assert Interval(-1.0, -2.0, -0.1).below
    assert not Interval(-1.0, -2.0, -0.1, p=0.2).below
    assert Interval(-1.0, -2.0, 0.1, p=0.01).below
    assert Interval(1.0, 0.1, 2.0, p=0.01).above
    assert not Interval(1.0, 0.1, 2.0, p=0.01).below
    assert "p" not in Interval(1.0, 0.1, 2.0).as_dict()
