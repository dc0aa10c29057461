"""Bounds on asking through ``predict`` and ``evaluate``: shares met by a calibrated rule, caps kept by a limiter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from clouds import X_TEST, Counting, X, Y, make, samples, scores
from first_calls import first_calls

from l2h import Costs, HelpSystem, RateLimit, Settings, StageSettings
from l2h.errors import NotFittedError, SettingsError
from l2h.limits import LimitError
from l2h.remote import AnswerCache

FEATURES, CLASSES = 6, 3
GRID = [round(0.05 * i, 2) for i in range(21)]
CALIBRATION = TEST = 4000
FREE = Costs(c_e=0.0, c_1=1.0)
PRICE = Costs(c_e=0.15, c_1=1.0)


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return inputs, (inputs @ TRUE + 0.5 * rng.normal(size=(n, CLASSES))).argmax(axis=1)


TRUE = np.random.default_rng(1).normal(size=(FEATURES, CLASSES)).astype(np.float32)
OTHER = np.random.default_rng(2).normal(size=(FEATURES, CLASSES)).astype(np.float32)


def client_scores(inputs: np.ndarray) -> np.ndarray:
    return inputs @ (TRUE + 1.5 * OTHER)


def server_scores(inputs: np.ndarray) -> np.ndarray:
    """Better than the client where the first feature is above -0.3, worse where it is below."""
    return np.where(inputs[:, :1] > -0.3, 2 * inputs @ TRUE, inputs @ OTHER).astype(np.float32)


SERVER = Counting(server_scores)
X_CAL, Y_CAL = noisy(CALIBRATION, 11)
X_NEW, Y_NEW = noisy(TEST, 12)


def system_for(**more: Any) -> HelpSystem:
    """Only the rejector trains: both classifiers are functions."""
    stage = StageSettings(epochs=5, batch=64)
    settings = Settings(rejector=stage, device="cpu", seed=1, **more)
    return HelpSystem(client_scores, SERVER, settings=settings)


@pytest.fixture(scope="module")
def priced() -> HelpSystem:
    return system_for().fit(*noisy(2500, 10)).calibrate(X_CAL, Y_CAL)


@pytest.fixture(scope="module")
def unpriced() -> HelpSystem:
    return system_for(loss="shifted").fit(*noisy(2500, 10), costs=PRICE).calibrate(X_CAL, Y_CAL)


def forget(system: HelpSystem) -> None:
    """Forget what the server was asked, and what it answered."""
    SERVER.calls, SERVER.asked = 0, []
    system.servers[0].fixed.cache = AnswerCache()


def sent(system: HelpSystem, *arguments: Any, **named: Any) -> np.ndarray:
    return system.predict(X_NEW, *arguments, **named).source == "remote"


def error(q: float, n: int = TEST) -> float:
    """Four standard errors of a rate met on fresh samples by a rule calibrated on others.

    Of the test: q (1 - q) / n. Of the calibration the same with its own n for the threshold; for the stochastic rule
    no more, since it is (q / q1)^2 q1 (1 - q1) / n where q < q1 and ((1 - q) / (1 - q1))^2 q1 (1 - q1) / n where not.
    """
    return 4 * math.sqrt(q * (1 - q) * (1 / n + 1 / CALIBRATION)) + 1e-12


@pytest.mark.parametrize("rule", ["stochastic", "threshold"])
@pytest.mark.parametrize("kind", ["priced", "unpriced"])
def test_the_realised_rate_is_the_bound_within_its_error(rule: str, kind: str, request: pytest.FixtureRequest) -> None:
    system = request.getfixturevalue(kind)
    q1 = system.calibrated_rate(FREE if kind == "priced" else None)
    assert 0.1 < q1 < 0.9, "both cases of the paper's rule are met"
    for q in GRID:
        rate = sent(system, limit=RateLimit(fraction=q), rule=rule, seed=3).mean()
        assert abs(rate - q) <= error(q), q


@pytest.mark.parametrize("kind", ["priced", "unpriced"])
def test_the_threshold_is_the_default_and_sends_what_gains_most(kind: str, request: pytest.FixtureRequest) -> None:
    system = request.getfixturevalue(kind)
    for q in (0.1, 0.4, 0.8):
        remote = sent(system, limit=RateLimit(fraction=q))
        assert np.array_equal(remote, sent(system, limit=RateLimit(fraction=q), rule="threshold"))
        gain = system.judge(X_NEW).gain
        assert gain[remote].min() >= gain[~remote].max()


def test_a_guaranteed_share_is_below_the_share_by_the_margin_of_its_confidence(priced: HelpSystem) -> None:
    for q in (0.05, 0.2, 0.5, 0.8):
        plain = sent(priced, limit=RateLimit(fraction=q))
        sure = sent(priced, limit=RateLimit(fraction=q, confidence=0.95))
        assert np.array_equal(sure, sent(priced, limit=RateLimit(fraction=q), rule="guaranteed")), "95% unless told"
        assert not (sure & ~plain).any()
        # The cut is the calibration's quantile at about 1.645 standard errors of it below q; one more for the steps.
        margin = 1.645 * math.sqrt(q * (1 - q) / CALIBRATION)
        assert abs(sure.mean() - (q - margin)) <= error(q)


@pytest.mark.parametrize("rule", ["stochastic", "threshold", "guaranteed"])
def test_nothing_and_everything(priced: HelpSystem, rule: str) -> None:
    forget(priced)
    assert not sent(priced, limit=RateLimit(fraction=0), rule=rule).any()
    assert SERVER.calls == 0, "a server that costs money is not even asked about nothing"
    answers = priced.predict(X_NEW, limit=RateLimit(fraction=1), rule=rule)
    assert (answers.source == "remote").all()
    assert SERVER.count == TEST
    assert np.array_equal(answers.label, server_scores(X_NEW).argmax(axis=1))


@pytest.mark.parametrize("limit", [RateLimit(0, per="1h"), RateLimit(fraction=0, window=50)], ids=str)
def test_a_cap_of_nothing(priced: HelpSystem, limit: RateLimit) -> None:
    SERVER.calls = 0
    assert not sent(priced, limit=limit).any()
    assert SERVER.calls == 0


def test_the_server_is_asked_about_what_goes_and_nothing_else(priced: HelpSystem) -> None:
    forget(priced)
    answers = priced.predict(X_NEW, limit=RateLimit(fraction=0.3), rule="stochastic", seed=5)
    remote = answers.source == "remote"
    assert np.array_equal(np.concatenate(SERVER.asked), X_NEW[remote])
    expected = np.where(remote, server_scores(X_NEW).argmax(1), client_scores(X_NEW).argmax(1))
    assert np.array_equal(answers.label, expected)


def test_a_seed_decides_what_is_drawn(priced: HelpSystem) -> None:
    limit = RateLimit(fraction=0.3)
    drawn = [sent(priced, limit=limit, rule="stochastic", seed=seed) for seed in (41, 41, 42)]
    assert not np.array_equal(drawn[0], drawn[1]), "the second call goes on where the first stopped"
    assert not np.array_equal(drawn[0], drawn[2])
    judged = [priced.evaluate(X_NEW, Y_NEW, limit=limit, rule="stochastic", seed=seed).remote for seed in (41, 41, 42)]
    assert np.array_equal(judged[0], drawn[0])
    assert np.array_equal(judged[0], judged[1]), "evaluate begins afresh"
    assert np.array_equal(judged[2], drawn[2])
    cut = [sent(priced, limit=limit, rule="threshold", seed=seed) for seed in (4, 5)]
    assert np.array_equal(*cut), "no two scores are equal here, so nothing is drawn"


def test_the_stochastic_rule_is_the_papers(priced: HelpSystem) -> None:
    """Below q1 it keeps some of what the rejector sends; from q1 on it sends all of that and some of the rest."""
    wants, q1 = sent(priced, FREE), priced.calibrated_rate(FREE)
    for q in (0.5 * q1, 0.5 * (1 + q1)):
        remote = sent(priced, limit=RateLimit(fraction=q), rule="stochastic", seed=2)
        assert not (remote & ~wants if q < q1 else wants & ~remote).any()
        share = remote[wants].mean() if q < q1 else remote[~wants].mean()
        expected = q / q1 if q < q1 else (q - q1) / (1 - q1)
        n = wants.sum() if q < q1 else (~wants).sum()
        assert abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["priced", pytest.param("unpriced", marks=pytest.mark.long)])
def test_threshold_beats_stochastic_beats_random(kind: str, request: pytest.FixtureRequest) -> None:
    """Mean accuracy over the bounds, at the same mean rate; the stochastic rule over five draws."""
    system = request.getfixturevalue(kind)
    right = np.stack([client_scores(X_NEW).argmax(1) == Y_NEW, server_scores(X_NEW).argmax(1) == Y_NEW]).astype(float)

    def accuracy(rule: str, seed: int) -> np.ndarray:
        remotes = [sent(system, limit=RateLimit(fraction=q), rule=rule, seed=seed) for q in GRID]
        return np.array([np.where(remote, right[1], right[0]).mean() for remote in remotes])

    threshold = accuracy("threshold", 0)
    draws = np.stack([accuracy("stochastic", seed) for seed in range(5)])
    stochastic = draws.mean(axis=0)
    chance = np.array([(1 - q) * right[0].mean() + q * right[1].mean() for q in GRID])
    # At a single q two accuracies on the same samples may differ by chance: four standard errors of a difference of
    # two rates, that of the test alone, for they share the calibration.
    noise = 4 * math.sqrt(0.5 / TEST)
    assert (threshold >= stochastic - noise).all()
    assert (stochastic >= chance - noise).all()
    assert threshold.mean() > stochastic.mean() + 0.01
    assert stochastic.mean() > chance.mean() + 0.01


@pytest.mark.parametrize(
    "limit",
    [
        RateLimit(fraction=0.1),
        RateLimit(fraction=0.9),
        RateLimit(fraction=0.2, window=100),
        RateLimit(fraction=0.9, window=100),
        RateLimit(300, per="1h"),
    ],
    ids=str,
)
def test_reasons_say_what_the_limit_changed(unpriced: HelpSystem, limit: RateLimit) -> None:
    wants = sent(unpriced)
    answers = unpriced.predict(X_NEW, limit=limit)
    remote = answers.source == "remote"
    expected = np.where(
        wants, np.where(remote, "worth_asking", "over_limit"), np.where(remote, "within_limit", "not_worth_asking")
    )
    assert np.array_equal(answers.reason, expected)
    assert np.array_equal(answers.cost, np.where(remote, PRICE.c_e, 0.0))
    changed = "within_limit" if limit.fraction == 0.9 else "over_limit"
    assert changed in answers.reason
    assert set(unpriced.predict(X_NEW).reason.tolist()) == {"worth_asking", "not_worth_asking"}


@pytest.mark.parametrize("kind", ["priced", "unpriced"])
@pytest.mark.parametrize(
    "limit",
    [
        *(RateLimit(fraction=q) for q in (0, 0.1, 0.5, 0.95, 1)),
        RateLimit(fraction=0.9, confidence=0.9),
        RateLimit(fraction=0.9, window=100),
        RateLimit(3900, per="1h"),
    ],
    ids=str,
)
def test_with_a_price_what_does_not_pay_is_not_sent(
    kind: str, limit: RateLimit, request: pytest.FixtureRequest
) -> None:
    system = request.getfixturevalue(kind)
    pays = sent(system, PRICE)
    assert 0.1 < pays.mean() < 0.9
    answers = system.predict(X_NEW, PRICE, limit=limit)
    remote = answers.source == "remote"
    assert not (remote & ~pays).any()
    assert "within_limit" not in answers.reason
    if limit.fraction is not None and limit.fraction > 0.94:
        assert np.array_equal(remote, pays), "a bound that is not reached changes nothing"


@pytest.mark.parametrize("kind", ["priced", "unpriced"])
def test_a_number_in_a_time_holds_over_calls_prices_and_rejectors_alike(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """An hour is longer than this test, so no window but one can be met."""
    system = request.getfixturevalue(kind)
    limit = RateLimit(100, per="1h")
    total = 0
    for start, costs in ((0, None), (500, None), (1000, PRICE), (1500, None), (2000, PRICE), (2500, None)):
        answers = system.predict(X_NEW[start : start + 500], costs, limit=limit)
        total += int((answers.source == "remote").sum())
        assert total <= 100
    assert total > 0
    other = system.predict(X_NEW[:500], limit=RateLimit(7, per="1h"))
    assert (other.source == "remote").sum() <= 7, "another limit has a cap of its own"


def test_a_number_in_a_time_holds_when_threads_make_the_first_call(
    priced: HelpSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priced, "_limiters", {})
    X = X_NEW[:20]
    given = first_calls(monkeypatch, lambda: int((priced.predict(X, limit="3/1h").source == "remote").sum()))
    assert sum(given) == 3


def test_a_limit_that_is_no_limit_says_how_to_write_one(priced: HelpSystem) -> None:
    with pytest.raises(LimitError, match=r"limit=0\.2 is no limit: write a RateLimit, or a text: '20%'"):
        priced.predict(X_NEW[:5], limit=0.2)  # type: ignore[arg-type]


def test_a_new_calibration_frees_no_budget() -> None:
    system = system_for().fit(*noisy(2500, 10)).calibrate(X_CAL, Y_CAL)
    limit = RateLimit(5, per="1h")
    first = (system.predict(X_NEW[:2000], limit=limit).source == "remote").sum()
    again = (system.calibrate(X_CAL, Y_CAL).predict(X_NEW[2000:], limit=limit).source == "remote").sum()
    assert first > 0
    assert first + again <= 5


def test_judging_neither_spends_a_window_nor_finds_it_spent(priced: HelpSystem) -> None:
    limit = RateLimit(50, per="2h")
    first = priced.evaluate(X_NEW, Y_NEW, limit=limit)
    again = priced.evaluate(X_NEW, Y_NEW, limit=limit)
    assert 0 < first.reject_rate <= 50 / TEST
    assert again.reject_rate > 0
    assert 0 < sent(priced, limit=limit).sum() <= 50
    assert priced.evaluate(X_NEW, Y_NEW, limit=limit).reject_rate > 0


@pytest.mark.parametrize(("fraction", "window"), [(0.2, 100), (0.5, 7), (0.01, 100), (1.0, 10)])
def test_a_share_of_a_window_holds_in_every_window_over_calls(priced: HelpSystem, fraction: float, window: int) -> None:
    limit = RateLimit(fraction=fraction, window=window)
    # Calls of every size, every other one with a price: windows span them all.
    cuts = np.cumsum(np.random.default_rng(0).integers(1, 60, size=300))
    parts = [part for part in np.split(X_NEW, cuts[cuts < TEST]) if len(part)]
    answers = [priced.predict(part, (None, PRICE)[i % 2], limit=limit) for i, part in enumerate(parts)]
    remote = np.concatenate([each.source for each in answers]) == "remote"
    held = np.convolve(remote.astype(int), np.ones(window, dtype=int))
    assert held.max() <= math.floor(fraction * window)
    assert remote.mean() > 0.5 * fraction, "it is there to be used"


def test_evaluate_judges_what_predict_sends(priced: HelpSystem) -> None:
    for rule in ("threshold", "stochastic", "guaranteed"):
        answers = priced.predict(X_NEW, PRICE, limit=RateLimit(fraction=0.2), rule=rule, seed=8)
        report = priced.evaluate(X_NEW, Y_NEW, PRICE, limit=RateLimit(fraction=0.2), rule=rule, seed=8).as_dict()
        assert report["reject_rate"] == pytest.approx((answers.source == "remote").mean())
        assert report["accuracy"]["system"] == pytest.approx((answers.label == Y_NEW).mean())
        wrong = answers.label != Y_NEW
        remote = answers.source == "remote"
        risk = np.where(remote, PRICE.c_e + PRICE.c_1 * wrong, wrong).mean()
        assert report["risk"]["system"] == pytest.approx(risk)


def test_a_system_of_several_rejectors_is_bounded_by_the_one_asked_for() -> None:
    prices = [Costs(c_e=0.05), Costs(c_e=0.3)]
    system = system_for(loss="shifted").fit(*noisy(600, 10), costs=prices).calibrate(X_CAL, Y_CAL)
    with pytest.raises(SettingsError, match="say which"):
        system.predict(X_NEW, limit=RateLimit(fraction=0.2))
    for which in (0, 1):
        rate = sent(system, limit=RateLimit(fraction=0.2), which=which).mean()
        assert abs(rate - 0.2) <= error(0.2)


# What cannot be done.


@pytest.fixture
def small() -> HelpSystem:
    return make(scores, Counting(scores)).fit(X, Y)


@pytest.mark.parametrize(("q", "confidence", "needed"), [(0.05, 0.95, 59), (0.01, 0.99, 459), (0.2, 0.999, 31)])
def test_too_few_samples_for_a_guarantee_say_how_many(
    small: HelpSystem, q: float, confidence: float, needed: int
) -> None:
    """The smallest n with (1 - q)^n <= 1 - confidence."""
    assert (1 - q) ** needed <= 1 - confidence < (1 - q) ** (needed - 1)
    limit = RateLimit(fraction=q, confidence=confidence)
    small.calibrate(*samples(needed - 1, 5))
    with pytest.raises(LimitError, match=rf"needs at least {needed} calibration samples, got {needed - 1}"):
        small.predict(X_TEST, limit=limit)
    small.calibrate(*samples(needed, 5))
    assert len(small.predict(X_TEST, limit=limit)) == len(X_TEST)


def test_a_rule_needs_a_limit(small: HelpSystem) -> None:
    for verb in (lambda: small.predict(X_TEST, rule="threshold"), lambda: small.evaluate(X, Y, rule="threshold")):
        with pytest.raises(SettingsError, match=r"rule='threshold' goes with a limit.*RateLimit"):
            verb()


def test_an_unknown_rule_is_told_with_those_there_are(small: HelpSystem) -> None:
    with pytest.raises(SettingsError, match=r"rule='best' is unknown; known: threshold, guaranteed, stochastic"):
        small.predict(X_TEST, limit=RateLimit(fraction=0.2), rule="best")


@pytest.mark.parametrize("limit", [RateLimit(5, per="1h"), RateLimit(fraction=0.2, window=10)], ids=str)
def test_a_cap_has_no_rule(small: HelpSystem, limit: RateLimit) -> None:
    with pytest.raises(SettingsError, match=r"rule='stochastic' is for a share"):
        small.predict(X_TEST, limit=limit, rule="stochastic")


@pytest.mark.parametrize(
    "limit", [RateLimit(fraction=0.2), RateLimit(fraction=0.2, window=10), RateLimit(5, per="1h")], ids=str
)
def test_a_bound_before_calibration_names_the_missing_verb(limit: RateLimit) -> None:
    """The paper's recipe keeps no samples back to calibrate on."""
    system = make(recipe="paper", loss="shifted")
    with pytest.raises(NotFittedError, match=r"call fit\(X, y\) first"):
        system.predict(X_TEST, limit=limit)
    system.fit(X, Y, costs=PRICE)
    with pytest.raises(NotFittedError, match=r"call calibrate\(X_cal, y_cal\) first"):
        system.predict(X_TEST, limit=limit)
    assert len(system.calibrate(*samples(100, 5)).predict(X_TEST, limit=limit)) == len(X_TEST)
