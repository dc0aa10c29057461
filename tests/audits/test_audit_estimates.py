"""What is estimated from pairs is true of all inputs: unbiased, within its interval as often as promised."""

from __future__ import annotations

import json
from html import escape
from itertools import product

import numpy as np
import pytest
from commands import call, one_line
from made_audits import World, pair, write
from scipy import stats

from l2h import Costs
from l2h.audits import AuditError, audit_report
from l2h.audits.estimates import disagreement_bounds, platt_test, saving_bounds, too_few, too_many, weighted_mean
from l2h.costs import local_loss, remote_loss
from l2h.metrics import apply_platt, fit_platt

REPEATS = 200


def figures(report):
    """The estimates, by the names of what is true."""
    return {
        "agreement": report.agreement["kept"],
        "asked": report.asked_share,
        "never": report.saved["never"].realised,
        "always": report.saved["always"].realised,
        "risk": report.risk.realised,
    }


@pytest.fixture(scope="module")
def repeated():
    """Reports of many samples of one world, and what is true of it."""
    world = World()
    truth = {name: float(value) for name, value in world.draw(1_000_000, 12345)[1].items()}
    return [audit_report(world.draw(6000, seed)[0]) for seed in range(REPEATS)], truth


def test_estimates_are_unbiased_although_shares_differ_and_half_of_the_labels_are_missing(repeated):
    reports, truth = repeated
    for name, true in truth.items():
        values = np.array([figures(report)[name].value for report in reports])
        # The mean of the estimates is the truth, within 4 of its standard errors.
        assert abs(values.mean() - true) < 4 * values.std() / np.sqrt(REPEATS), name
        assert values.std() > 0


def test_intervals_hold_the_truth_as_often_as_promised(repeated):
    reports, truth = repeated
    for name, true in truth.items():
        held = sum(figures(report)[name].low <= true <= figures(report)[name].high for report in reports)
        # 95% of 200 are 190; so few that 95% could hardly be true are refused.
        assert stats.binom.cdf(held, REPEATS, 0.95) > 1e-3, (name, held)
        assert held < REPEATS or name in ("never", "always"), name  # with few errors the interval is a wide one
    for rule in ("never", "always"):
        bounds = [(report.saved[rule].least, report.saved[rule].most) for report in reports]
        assert np.mean([least.low <= truth[rule] <= most.high for least, most in bounds]) >= 0.95
        stated = [report.saved[rule].stated for report in reports]
        assert np.mean([each.low <= truth[rule] <= each.high for each in stated]) > 0.9


def test_calibrated_heads_are_seldom_blamed(repeated):
    reports, _ = repeated
    by_agreement = sum(report.p_value < 0.05 for report in reports)
    by_labels = [sum(report.heads[name].p_value < 0.05 for report in reports) for name in ("client", "server")]
    for blamed in (by_agreement, *by_labels):
        assert stats.binom.sf(blamed - 1, REPEATS, 0.05) > 1e-3, blamed
    differ = sum(not report.risk.difference.low <= 0 <= report.risk.difference.high for report in reports)
    assert stats.binom.sf(differ - 1, REPEATS, 0.05) > 1e-3


@pytest.mark.parametrize("world", [World(shift=2.0, labelled=0), World(server_shift=3.0, labelled=0)])
def test_without_labels_a_side_that_got_worse_is_noticed(world):
    reports = [audit_report(world.draw(10_000, seed)[0]) for seed in range(10)]
    assert np.mean([report.calibrated is False for report in reports]) >= 0.9
    assert "no longer calibrated" in " ".join(reports[0].sentences())
    assert reports[0].risk.realised is None
    assert reports[0].heads == {}


def test_with_labels_the_head_is_named_and_the_broken_promise_shows():
    report = audit_report(World(shift=1.0).draw(20_000, 1)[0])
    assert report.heads["client"].p_value < 1e-3 < report.heads["server"].p_value
    assert report.risk.difference.low > 0
    text = " ".join(report.sentences())
    assert "the client is right on" in text
    assert "more than the" in text


def test_the_mean_is_that_of_the_inputs_that_pairs_stand_for():
    one = weighted_mean([1.0, 0.0], [10, 30])
    assert one.value == 0.25
    assert weighted_mean([], []) is None
    # No error among many pairs: the interval is that of Agresti and Coull, by its own formula.
    n, z = 500, stats.norm.ppf(0.975)
    middle, count = (n + z**2 / 2) / (n + z**2), n + z**2
    found = weighted_mean(np.ones(n), np.full(n, 7.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(middle - z * np.sqrt(middle * (1 - middle) / count), abs=2e-5)


@pytest.mark.parametrize("costs", [Costs(c_e=0.1, c_1=1.25), Costs(c_e=0.0, c_1=0.0), Costs.from_outcomes(1, 9, 2, 20)])
def test_bounds_on_savings_are_reached_by_some_labels_and_passed_by_none(costs):
    four = np.array([[costs.c_cc, costs.c_ce, costs.c_sc, costs.c_se]])
    for client, server in product(range(3), repeat=2):
        agree = np.array([client == server])
        saved = [
            (local_loss([client == y], costs) - remote_loss([server == y], costs)).item() for y in range(3)
        ]  # every label
        low, high = saving_bounds(agree, four)
        assert (low.item(), high.item()) == (min(saved), max(saved))


def test_bounds_on_disagreement_are_those_of_every_joint_distribution():
    rng = np.random.default_rng(0)
    # Both right, only one, only the other, both wrong with the same answer, both wrong with others.
    joint = rng.dirichlet(np.full(5, 0.4), size=5000)
    p, q, differ = joint[:, 0] + joint[:, 1], joint[:, 0] + joint[:, 2], joint[:, 1] + joint[:, 2] + joint[:, 4]
    least, most = disagreement_bounds(p, q)
    assert (least <= differ + 1e-12).all()
    assert (differ <= most + 1e-12).all()
    assert ((differ - least) < 0.01).any()
    assert ((most - differ) < 0.01).any()


def test_tails_bound_those_of_unequal_events():
    rng = np.random.default_rng(1)
    probability = rng.beta(0.5, 3, 60)
    mass = np.array([1.0])
    for p in probability:
        mass = np.convolve(mass, [1 - p, p])
    upper, lower = mass[::-1].cumsum()[::-1], mass.cumsum()
    for count in range(61):
        assert too_many(count, probability) >= upper[count] - 1e-12
        assert too_few(count, probability) >= lower[count] - 1e-12
    assert too_many(30, probability) < 1e-5
    assert too_few(0, np.full(60, 0.3)) == pytest.approx(0.7**60)
    assert too_many(1, np.zeros(5)) == 0.0
    assert too_many(5, np.ones(5)) == 1.0


def test_the_test_of_a_head_is_the_likelihood_ratio_in_the_long_run():
    rng = np.random.default_rng(2)
    z = rng.normal(1, 1, 4000)
    right = rng.random(4000) < 1 / (1 + np.exp(-(0.97 * z - 0.05)))

    def loss(p):
        return -np.log(np.where(right, p, 1 - p)).sum()

    ratio = 2 * (loss(apply_platt(z, 1.0, 0.0)) - loss(apply_platt(z, *fit_platt(z, right, ridge=1e-9))))
    assert -2 * np.log(platt_test(z, right)) == pytest.approx(ratio, rel=0.05)
    assert 1 < ratio < 30
    same = np.zeros(400)
    assert platt_test(same, np.arange(400) % 2 == 0) == pytest.approx(1.0)
    assert platt_test(same, np.ones(400, bool)) < 1e-10


def test_the_command_prints_the_report_and_names_what_it_left_out(tmp_path):
    log = write(tmp_path / "a", [pair(i, server=i % 2, heads=(1.0, 2.0)) for i in range(60)])
    log.write([pair(100 + i, kind="asked", probability=0.1, reason="worth_asking") for i in range(20)])
    log.write([pair(200, server=None, fault="deadline")])
    for i in range(30):
        log.feedback(f"{i:016x}", 0)
    write(tmp_path / "b", [pair(300)], bundle="old")
    sources = [tmp_path / "a", tmp_path / "b", "--bundle", "0123456789ab"]
    told = call("audit", "report", *sources, "--out", tmp_path / "page.html")
    assert told.status == 0
    assert "1 line left out: another bundle, old" in told.err
    for line in ("60 asked by chance, 20 asked anyway, 30 with a label", "deadline 1", "about 6200 inputs", "cam-7"):
        assert line in told.out
    found = call("audit", "report", *sources, "--json").json()
    report = audit_report(*sources[:2], bundle="0123456789ab")
    assert found == json.loads(json.dumps(report.as_dict()))
    assert found["agreement"]["kept"]["value"] == 0.5
    assert found["asked_share"]["value"] == pytest.approx(200 / 6200)
    assert found["unanswered"] == {"deadline": 1}
    assert found["audit_cost"] == pytest.approx(60 * 0.1 / 6200)
    for sentence in report.sentences():
        assert sentence in told.out.replace("\n", " ")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for text in (*report.sentences(), *report.figures(), *report.left_out):
        assert escape(text) in page
    missing = call("audit", "report", tmp_path / "never")
    assert missing.status == 1
    assert one_line(missing.err)


def test_a_report_needs_answers(tmp_path):
    write(tmp_path, [pair(1, server=None, fault="deadline"), pair(2, server=None, fault="server_busy")])
    with pytest.raises(AuditError, match=r"no server answered any of the 2 inputs .*: deadline 1, server_busy 1"):
        audit_report(tmp_path)
