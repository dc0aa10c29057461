"""Rules that train nothing: thresholds on the client's scores, coins, and references that know the outcomes."""

import math
import runpy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from losses_maker import Labels, answers, bench_of, outcomes_by_right, outcomes_of
from scipy.optimize import minimize_scalar

from l2h import metrics
from l2h.classifiers import ClassifierAnswers
from l2h.costs import Costs, FloatArray
from l2h.decision import bayes
from l2h.errors import DataError
from l2h.methods import Inputs, Method, Outcomes, ReferenceRule, Rule, ThresholdRule, get

PRICES = [Costs(e, one) for e, one in ((0.0, 1.0), (0.1, 0.5), (0.1, 1.0), (0.25, 1.25), (1.0, 1.0))]
CONFIDENCE = ["confidence", "margin", "entropy", "temperature"]
TRIVIAL = ["all-local", "all-remote", "random"]
REFERENCES = ["label-free", "oracle"]
#: Of the true posterior: the client sees it blurred and overstates it, the server sees it sharper.
CLIENT_BLUR, CLIENT_BOAST = 0.6, 2.5


def method(name: str) -> Method:
    (one,) = get([name])
    return one


def sharpened(p: FloatArray, power: float) -> FloatArray:
    raised = p**power
    return raised / raised.sum(axis=1, keepdims=True)


def make_outcomes(seed: int, n: int = 300, K: int = 4, *, has_scores: bool = True) -> Outcomes:
    """A client that is worse than the server and too sure of itself."""
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet(np.full(K, 0.4), size=n) * 0.99 + 0.01 / K
    y = np.array([rng.choice(K, p=row / row.sum()) for row in posterior])
    blurred = posterior * np.exp(CLIENT_BLUR * rng.normal(size=(n, K)))
    stated = sharpened(blurred, CLIENT_BOAST) * 0.999 + 0.001 / K
    return outcomes_of(y, answers(stated / stated.sum(axis=1, keepdims=True), has_scores=has_scores), posterior)


@pytest.fixture(scope="module")
def held() -> Outcomes:
    return make_outcomes(1)


@pytest.fixture(scope="module")
def unseen() -> Outcomes:
    return make_outcomes(2)


def losses(outcomes: Outcomes, costs: Costs) -> tuple[FloatArray, FloatArray]:
    """Of keeping and of sending each sample, by the formulas."""
    label, server = outcomes.client.label, outcomes.server_log_probability.argmax(axis=1)
    return (label != outcomes.y).astype(float), costs.c_e + costs.c_1 * (server != outcomes.y)


def risk(outcomes: Outcomes, remote: npt.NDArray[np.bool_], costs: Costs) -> float:
    local, sent = losses(outcomes, costs)
    return float(np.where(remote, sent, local).mean())


def best_of_all_cuts(score: FloatArray, outcomes: Outcomes, costs: Costs) -> float:
    """The lowest risk of any rule that sends the highest scores, by trying each."""
    cuts = [-math.inf, math.inf, *np.unique(score).tolist()]
    return min(risk(outcomes, score >= cut, costs) for cut in cuts)


def best_temperature(log_p: FloatArray, y: Labels) -> float:
    """By scipy: the mean log-loss of ``softmax(log_p / T)`` is least."""

    def loss(log_t: float) -> float:
        scaled = log_p / math.exp(log_t)
        log_total = np.log(np.exp(scaled).sum(axis=1))
        return float((log_total - scaled[np.arange(len(y)), y]).mean())

    found = minimize_scalar(loss, bounds=(-math.log(8), math.log(8)), method="bounded", options={"xatol": 1e-8})
    return math.exp(found.x)


def doubt_by_hand(name: str, client: ClassifierAnswers, held: Outcomes) -> list[float]:
    """What each rule compares with its threshold, a sample at a time."""
    out = []
    temperature = best_temperature(held.client.log_probability.astype(float), held.y)
    for row in np.exp(client.log_probability.astype(float)).tolist():
        first, second = sorted(row, reverse=True)[:2]
        if name == "confidence":
            out.append(1 - first)
        elif name == "margin":
            out.append(1 - (first - second))
        elif name == "entropy":
            out.append(-math.fsum(p * math.log(p) for p in row))
        else:
            powers = [p ** (1 / temperature) for p in row]
            out.append(1 - max(powers) / math.fsum(powers))
    return out


# Confidence


@pytest.mark.parametrize("name", CONFIDENCE)
def test_confidence_ranks_by_its_formula(name: str, held: Outcomes, unseen: Outcomes) -> None:
    choice = method(name).fit(bench_of(held, PRICES)).decide(unseen.inputs, PRICES[1])
    # The temperature's search stops at about 1e-4, where float32 leaves the log-loss flat.
    tolerance = 1e-3 if name == "temperature" else 1e-6
    np.testing.assert_allclose(choice.score, doubt_by_hand(name, unseen.client, held), atol=tolerance)
    assert choice.as_published is None


@pytest.mark.parametrize("costs", PRICES)
@pytest.mark.parametrize("name", CONFIDENCE)
def test_the_threshold_is_the_best_of_all_cuts_of_the_calibration_samples(
    name: str, costs: Costs, held: Outcomes
) -> None:
    rule = method(name).fit(bench_of(held, PRICES))
    choice = rule.decide(held.inputs, costs)
    # Sums of 300 costs, in another order.
    assert risk(held, choice.remote, costs) == pytest.approx(best_of_all_cuts(choice.score, held, costs), abs=1e-12)
    assert (choice.remote == (choice.score >= rule.threshold(costs))).all()


@pytest.mark.parametrize("name", CONFIDENCE)
def test_the_threshold_is_the_calibrations_and_not_the_tests(name: str, held: Outcomes, unseen: Outcomes) -> None:
    rule = method(name).fit(bench_of(held, PRICES))
    for costs in PRICES:
        choice = rule.decide(unseen.inputs, costs)
        assert (choice.remote == (choice.score >= rule.threshold(costs))).all()
        # The rule is handed no outcomes, and every part of the test set is decided as the whole is.
        half = Inputs(unseen.X[::2], unseen.client.at(slice(None, None, 2)))
        assert (rule.decide(half, costs).remote == choice.remote[::2]).all()


def test_all_doubts_agree_where_there_are_two_classes() -> None:
    held, unseen = make_outcomes(3, K=2), make_outcomes(4, K=2)
    chosen = {name: method(name).fit(bench_of(held, PRICES)) for name in CONFIDENCE}
    for costs in PRICES:
        decisions = [rule.decide(held.inputs, costs).remote for rule in chosen.values()]
        order = [np.argsort(rule.decide(unseen.inputs, costs).score, kind="stable") for rule in chosen.values()]
        for other in decisions[1:]:
            assert (other == decisions[0]).all()
        for other in order[1:]:
            # Doubts of nearly one size may fall together in float32.
            assert (other == order[0]).mean() > 0.9


def test_scaling_the_temperature_undoes_a_boast() -> None:
    truth = make_outcomes(5, n=4000)
    honest = truth.server_probability
    boasting = outcomes_of(truth.y, answers(sharpened(honest, 3.0)), honest)
    rule = method("temperature").fit(bench_of(boasting, PRICES))
    score = rule.decide(boasting.inputs, PRICES[0]).score
    # T is fitted to 4000 samples: off by a few parts in a hundred, and the probabilities by less.
    assert np.abs(score - (1 - honest.max(axis=1))).max() < 0.03
    boasted = method("confidence").fit(bench_of(boasting, PRICES)).decide(boasting.inputs, PRICES[0]).score
    assert np.abs(boasted - (1 - honest.max(axis=1))).max() > 0.2


@pytest.mark.parametrize("name", CONFIDENCE)
def test_a_client_that_gives_labels_only_is_sent_whole_or_kept_whole(name: str) -> None:
    held, unseen = (make_outcomes(seed, has_scores=False) for seed in (6, 7))
    rule = method(name).fit(bench_of(held, PRICES))
    for costs in PRICES:
        choice = rule.decide(unseen.inputs, costs)
        assert len(set(choice.score.tolist())) == 1
        local, sent = (each.mean() for each in losses(held, costs))
        assert choice.remote.tolist() == [bool(sent < local)] * len(unseen)
    assert {bool(rule.decide(unseen.inputs, costs).remote[0]) for costs in PRICES} == {True, False}


def test_equal_doubts_are_never_parted() -> None:
    rng = np.random.default_rng(8)
    rows = np.array([[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.4, 0.35, 0.25]])[rng.integers(0, 3, 60)]
    held = outcomes_of(rng.integers(0, 3, 60), answers(rows), rng.dirichlet(np.ones(3), size=60))
    for name in CONFIDENCE:
        rule = method(name).fit(bench_of(held, PRICES))
        for costs in PRICES:
            choice = rule.decide(held.inputs, costs)
            for level in np.unique(choice.score):
                assert len(set(choice.remote[choice.score == level].tolist())) == 1
            found = risk(held, choice.remote, costs)
            assert found == pytest.approx(best_of_all_cuts(choice.score, held, costs), abs=1e-12)


# The threshold of a method's own paper


class Scored(ThresholdRule):
    """The inputs are the scores."""

    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        return np.asarray(inputs.X[:, 0], dtype=np.float64)


class WithOwn(Scored):
    published = 0.0


FREE = Costs(c_e=0.0, c_1=1.0)


def wins_and_losses(wins: int, harms: int, n: int = 100) -> Outcomes:
    """Samples just below the threshold 0 of which sending would save some and harm some; the harmed rank higher.

    The best cut sends both kinds, if the wins are more, and saves (wins - harms) / n against the cut at 0.
    """
    right = n // 2 - wins - harms
    score = np.concatenate([np.full(harms, -0.1), np.full(wins, -0.2), np.full(n // 2, 1.0), np.full(right, -1.0)])
    client = np.concatenate([np.ones(harms), np.zeros(wins), np.zeros(n // 2), np.ones(right)])
    server = np.concatenate([np.zeros(harms), np.ones(wins), np.ones(n // 2), np.zeros(right)])
    return outcomes_by_right(client, server, score[:, None])


@pytest.mark.parametrize(("wins", "harms"), [(w, h) for h in (0, 2, 6, 12) for w in range(h + 1, h + 9)])
def test_a_papers_threshold_gives_way_only_to_one_better_by_more_than_its_standard_error(wins: int, harms: int) -> None:
    held = wins_and_losses(wins, harms)
    n = len(held)
    saved = (wins - harms) / n
    error = math.sqrt(((wins + harms) / n - saved**2) / n)
    rule = WithOwn(bench_of(held, [FREE]))
    choice = rule.decide(held.inputs, FREE)
    if saved > error:
        assert -0.2 >= rule.threshold(FREE) > -1.0
        assert risk(held, choice.remote, FREE) == pytest.approx(harms / n)
    else:
        assert rule.threshold(FREE) == 0.0
        assert risk(held, choice.remote, FREE) == pytest.approx(wins / n)
    # What the paper's rule decides is kept beside it in either case.
    assert choice.as_published is not None
    assert (choice.as_published == (held.X[:, 0] >= 0)).all()


def test_both_sides_of_the_standard_error_are_met() -> None:
    chosen = {wins: WithOwn(bench_of(wins_and_losses(wins, 2), [FREE])).threshold(FREE) for wins in (3, 4, 5, 6)}
    # 2 wins more against a standard error of the root of 6, 3 more against the root of 7.
    assert chosen[3] == chosen[4] == 0.0
    assert chosen[5] == chosen[6] != 0.0


def test_without_a_paper_the_least_gain_moves_the_threshold() -> None:
    held = wins_and_losses(3, 2)
    assert WithOwn(bench_of(held, [FREE])).threshold(FREE) == 0.0
    rule = Scored(bench_of(held, [FREE]))
    assert -0.2 >= rule.threshold(FREE) > -1.0
    assert rule.decide(held.inputs, FREE).as_published is None


def test_more_of_the_same_samples_move_the_threshold() -> None:
    one = wins_and_losses(4, 2)
    many = outcomes_by_right(np.tile(one.client_correct, 4), np.tile(one.server_correct, 4), np.tile(one.X, (4, 1)))
    assert WithOwn(bench_of(one, [FREE])).threshold(FREE) == 0.0
    assert WithOwn(bench_of(many, [FREE])).threshold(FREE) < 0.0


def test_each_price_has_its_own_threshold() -> None:
    held = wins_and_losses(20, 2)
    rule = Scored(bench_of(held, [FREE, Costs(2.0, 1.0)]))
    assert rule.decide(held.inputs, Costs(2.0, 1.0)).remote.sum() == 0
    assert rule.decide(held.inputs, FREE).remote.sum() == 72
    assert rule.decide(held.inputs, Costs(2.0, 1.0)).remote.sum() == 0


# Rules that look at nothing


@pytest.mark.parametrize(("name", "sent"), [("all-local", 0), ("all-remote", 300)])
def test_the_constant_rules_are_constant(name: str, sent: int, held: Outcomes, unseen: Outcomes) -> None:
    rule = method(name).fit(bench_of(held, PRICES))
    for costs in PRICES:
        assert rule.decide(unseen.inputs, costs).remote.sum() == sent


def test_random_sends_as_often_as_asking_would_have_paid(held: Outcomes) -> None:
    many = make_outcomes(9, n=2000)
    rule = method("random").fit(bench_of(held, PRICES, seed=3))
    rates = []
    for costs in PRICES:
        local, sent = losses(held, costs)
        share = float((sent < local).mean())
        choice = rule.decide(many.inputs, costs)
        rates.append(choice.remote.mean())
        # Four standard deviations of a share of 2000.
        assert abs(rates[-1] - share) <= 4 * math.sqrt(share * (1 - share) / len(many))
        assert (choice.score == 0).all()
    assert max(rates) > 0.1
    assert rates[-1] == 0.0  # asking costs as much as an error: it never pays


def test_random_is_drawn_by_the_seed_alone(held: Outcomes, unseen: Outcomes) -> None:
    first, same, other = (method("random").fit(bench_of(held, PRICES, seed=seed)) for seed in (1, 1, 2))
    drawn = [rule.decide(unseen.inputs, PRICES[0]).remote for rule in (first, same, other)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    # The coin does not look at the inputs: what is sent is no better than what is kept.
    assert (first.decide(make_outcomes(11).inputs, PRICES[0]).remote == drawn[0]).all()


# References


def decide(rule: Rule, outcomes: Outcomes, costs: Costs) -> npt.NDArray[np.bool_]:
    if isinstance(rule, ReferenceRule):
        return rule.decide_knowing(outcomes, costs).remote
    return rule.decide(outcomes.inputs, costs).remote


@pytest.mark.parametrize("costs", PRICES)
def test_no_rule_has_a_lower_risk_than_the_oracle(costs: Costs, held: Outcomes, unseen: Outcomes) -> None:
    bench = bench_of(held, PRICES)
    local, sent = losses(unseen, costs)
    oracle = decide(method("oracle").fit(bench), unseen, costs)
    # Sample by sample the lesser of the two losses, so below every rule there can be.
    assert (np.where(oracle, sent, local) == np.minimum(local, sent)).all()
    for name in (*TRIVIAL, *CONFIDENCE, "label-free"):
        assert risk(unseen, oracle, costs) <= risk(unseen, decide(method(name).fit(bench), unseen, costs), costs)
    # And it does not send what gains nothing.
    assert not oracle[sent == local].any()


def test_the_oracle_ranks_by_what_is_gained(held: Outcomes, unseen: Outcomes) -> None:
    rule = method("oracle").fit(bench_of(held, PRICES))
    assert isinstance(rule, ReferenceRule)
    score = rule.decide_knowing(unseen, PRICES[1]).score
    client, server = unseen.client_correct, unseen.server_correct
    assert metrics.frontier_gain(metrics.frontier(score, client, server).area, client, server) == pytest.approx(1.0)


def test_the_label_free_ranking_is_that_of_the_frontiers_bound(held: Outcomes, unseen: Outcomes) -> None:
    rule = method("label-free").fit(bench_of(held, PRICES))
    assert isinstance(rule, ReferenceRule)
    p = np.exp(unseen.server_log_probability.astype(float)).tolist()
    by_hand = [max(row) - row[j] for row, j in zip(p, unseen.client.label.tolist(), strict=True)]
    for costs in PRICES:
        score = rule.decide_knowing(unseen, costs).score
        assert (score == metrics.label_free_score(unseen.server_probability, unseen.client.label)).all()
        assert score.tolist() == pytest.approx(by_hand, abs=1e-12)


def test_the_label_free_rule_is_the_bayes_rule_of_the_servers_scaled_softmax(held: Outcomes, unseen: Outcomes) -> None:
    boast = 2.0  # the server says more than it knows, and the calibration samples tell
    sure_held, sure_unseen = (
        outcomes_of(each.y, each.client, sharpened(each.server_probability, boast)) for each in (held, unseen)
    )
    rule = method("label-free").fit(bench_of(sure_held, PRICES))
    temperature = best_temperature(sure_held.server_log_probability.astype(float), sure_held.y)
    assert temperature > 1.5
    p = sharpened(sure_unseen.server_probability, 1 / temperature)
    for costs in PRICES:
        local = 1 - p[np.arange(len(p)), sure_unseen.client.label]
        remote = costs.c_e + costs.c_1 * (1 - p.max(axis=1))
        # The temperature's search stops at about 1e-4, where float32 leaves the log-loss flat.
        clear = np.abs(local - remote) > 2e-3
        sent = decide(rule, sure_unseen, costs)
        assert (sent == bayes(p, sure_unseen.client.label, costs))[clear].all()
        assert clear.sum() > (250 if costs.c_e else 50)


@pytest.mark.parametrize("name", REFERENCES)
def test_references_refuse_to_decide_on_inputs_alone(name: str, held: Outcomes) -> None:
    rule = method(name).fit(bench_of(held, PRICES))
    assert method(name).family == "reference"
    with pytest.raises(DataError, match="decide_knowing"):
        rule.decide(held.inputs, PRICES[0])


@pytest.mark.parametrize("name", [*TRIVIAL, *CONFIDENCE])
def test_ordinary_rules_know_no_outcomes(name: str, held: Outcomes, unseen: Outcomes) -> None:
    rule = method(name).fit(bench_of(held, PRICES))
    assert not isinstance(rule, ReferenceRule)
    assert not hasattr(unseen.inputs, "y")
    assert not hasattr(unseen.inputs, "server_log_probability")


def test_the_page_of_the_methods_is_in_step_with_what_they_say() -> None:
    """docs/methods.md holds what benchmarks/methods_page.py would write."""
    project = Path(__file__).parents[2]
    script = runpy.run_path(str(project / "benchmarks" / "methods_page.py"), run_name="methods_page")
    text = (project / "docs" / "methods.md").read_text()
    assert script["page"](text) == text
