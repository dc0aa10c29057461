"""A policy for several servers and a second opinion: whom it asks, within limits of each server and over all."""

import itertools
import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from l2h.answers import Answerer, Answers
from l2h.costs import Costs
from l2h.decision import CLIENT, FREE, SERVER, STUDENT, Judgement, Policy
from l2h.errors import CostError, DataError, SettingsError
from l2h.limits import Limiter, LimitError, RateLimit, guaranteed_threshold, stochastic, threshold_for

BOX, CLOUD = Answerer("box", remote=True), Answerer("cloud", remote=True)
FOUR = (CLIENT, STUDENT, BOX, CLOUD)
PRICES = {"box": Costs(c_e=0.05), "cloud": Costs(c_e=0.15, c_1=1.25)}


def judged(n: int, seed: int, answerers: tuple[Answerer, ...] = FOUR, levels: int | None = None) -> Judgement:
    """Return a judgement in which servers know more; with few levels there are many ties."""
    rng = np.random.default_rng(seed)
    q = np.column_stack([rng.beta(3 + 2 * a.remote, 2, size=n) for a in answerers])
    return Judgement(q, q if levels is None else np.round(q * levels) / levels, answerers)


HELD = judged(2000, 0)


def policy(
    limit: Any = None, held: Judgement | None = HELD, answerers: tuple[Answerer, ...] = FOUR, **options: Any
) -> Policy:
    return Policy(lambda costs, _: (0, costs or PRICES), True, lambda _: held, limit, answerers=answerers, **options)


def unpaced(limit: str) -> Limiter:
    return Limiter(RateLimit.parse(limit), pacing=False)


def ask(
    one: Policy, judgement: Judgement, costs: Any = PRICES, without: tuple[str, ...] = (), seed: int = 0
) -> npt.NDArray[np.intp]:
    terms = one.without(one.terms(costs), without)
    return one.permit(one.propose(judgement, terms, seed), [len(judgement)] * 2)[0]


def test_without_a_limit_every_input_goes_to_the_cheapest_answerer() -> None:
    judgement = judged(500, 1, levels=8)
    one = policy()
    terms = one.terms(PRICES)
    proposal = one.propose(judgement, terms, 0)
    choice, decided = one.permit(proposal, [500, 500])
    column = terms.column(proposal, choice)
    assert decided == 500
    assert (column == judgement.choose(PRICES, judgement.remote(PRICES))).all()
    assert set(column.tolist()) == {0, 1, 2, 3}
    label = np.arange(500)
    answers = Answers.chosen(label, column, terms.answerers, terms.paid, proposal.wanted)
    assert answers.by.tolist() == [FOUR[k].name for k in column]
    assert (answers.source == np.where(column >= 2, "remote", "local")).all()
    assert answers.cost.tolist() == [[0.0, 0.0, 0.05, 0.15][k] for k in column]
    assert answers[0].by == answers.by[0]


@pytest.mark.parametrize("out", [(), ("box",), ("cloud",), ("box", "cloud")])
@pytest.mark.parametrize("answerers", [FOUR, (CLIENT, BOX, CLOUD), (CLIENT, STUDENT, BOX), (CLIENT, SERVER)])
def test_one_input_is_decided_as_many_are(answerers: tuple[Answerer, ...], out: tuple[str, ...]) -> None:
    servers = [a.name for a in answerers if a.remote]
    out = tuple(name for name in out if name in servers)
    # Eighths are exact in binary, so that ties are exact too.
    prices = {name: Costs(c_e, c_1) for name, c_e, c_1 in zip(servers, (0.125, 0.25), (1.0, 1.25), strict=False)}
    judgement = judged(400, 2, answerers, levels=8)
    one = policy(answerers=answerers)
    terms = one.without(one.terms(prices), out)
    proposal = one.propose(judgement, terms, 0)
    column = terms.column(proposal, one.permit(proposal, [400] * len(servers))[0])
    alone = [terms.choose(judgement.rows(np.array([i]))) for i in range(400)]
    assert column.tolist() == alone
    assert not {answerers[k].name for k in alone} & set(out)
    expected = judgement.expected_costs(prices)
    expected[:, [k for k, a in enumerate(answerers) if a.name in out]] = np.inf
    np.testing.assert_array_equal(expected[np.arange(400), column], expected.min(axis=1))


@pytest.mark.parametrize("limit", ["20%", "5%", "0%", "100%", "20%@95%"])
@pytest.mark.parametrize("costs", [None, PRICES])
def test_one_share_over_all_is_the_threshold_on_the_saving(limit: str, costs: Any) -> None:
    judgement, share = judged(1000, 3, levels=50), RateLimit.parse(limit)
    held = judged(2000, 4, levels=50)
    prices = costs or FREE
    cut = (
        threshold_for(held.saving(prices), share.fraction)
        if share.confidence is None
        else guaranteed_threshold(held.saving(prices), share.fraction, share.confidence)
    )
    saving = judgement.saving(prices)
    sent = cut.apply(saving, 5) & ((saving >= 0) if costs else True)
    for given in (limit, share, {"all": limit}):
        choice = ask(policy(given, held), judgement, costs, seed=5)
        assert ((choice >= 0) == sent).all()
        assert (choice[sent] == judgement.choose(prices, sent)[sent] - 2).all(), "and the best server is asked"


def test_the_stochastic_rule_thins_what_the_rejector_sends() -> None:
    judgement = judged(1000, 6)
    one = policy("10%", rule="stochastic")
    q1 = float(HELD.remote(PRICES).mean())
    assert ((ask(one, judgement, seed=3) >= 0) == stochastic(judgement.remote(PRICES), q1, 0.1, 3)).all()


@pytest.mark.parametrize("one_server", [{"server": "20%"}, {"all": "20%"}, "20%"])
def test_a_limit_of_the_only_server_is_one_over_all(one_server: Any) -> None:
    held, judgement = judged(500, 7, (CLIENT, SERVER)), judged(500, 8, (CLIENT, SERVER))
    one = policy(one_server, held, (CLIENT, SERVER))
    sent = one.permit(one.propose(judgement, one.terms(None), 1), [500])[0] >= 0
    assert (sent == threshold_for(held.saving(FREE), 0.2).apply(judgement.saving(FREE), 1)).all()


@pytest.mark.parametrize("levels", [None, 20])
@pytest.mark.parametrize("costs", [None, PRICES])
def test_shares_of_each_server_are_met_on_the_calibration_samples(levels: int | None, costs: Any) -> None:
    held = judged(1000, 9, levels=levels)
    limits = {"box": "10%", "cloud": "15%", "all": "20%"}
    used = np.mean(
        [np.bincount(ask(policy(limits, held), held, costs, seed=s) + 1, minlength=3) for s in range(30)], axis=0
    )
    share = used[1:] / 1000
    # 30 draws of a few ties each.
    assert (share <= np.array([0.10, 0.15]) + 0.003).all()
    assert share.sum() == pytest.approx(0.2, abs=0.003)


def test_shares_are_met_by_the_servers_that_are_left() -> None:
    one = policy({"cloud": "10%", "box": "30%"})
    all_of_them, alone = ask(one, HELD), ask(one, HELD, without=("box",))
    assert (all_of_them == 1).mean() == pytest.approx(0.1, abs=1e-3)
    assert (alone == 1).mean() == pytest.approx(0.1, abs=1e-3)
    assert not (alone == 0).any()
    saving = one.without(one.terms(PRICES), ("box",)).gains(HELD)[0][:, 1]
    assert saving[alone == 1].min() >= saving[alone != 1].max(), "those of which it makes most"


def test_no_decision_within_the_shares_costs_less() -> None:
    held = judged(8, 10)
    expected = held.expected_costs(PRICES)
    local = expected[:, :2].min(axis=1)
    chosen = ask(policy({"cloud": "25%", "all": "50%"}, held), held)
    options = np.column_stack([expected[:, 2:], local])  # -1 is the last
    best = min(
        options[np.arange(8), choice].sum()
        for choice in itertools.product((-1, 0, 1), repeat=8)
        if choice.count(1) <= 2 and choice.count(-1) >= 4
    )
    assert options[np.arange(8), chosen].sum() == pytest.approx(best, abs=1e-12)


def test_limiters_of_each_server_and_over_all_are_never_broken_and_the_next_best_is_asked() -> None:
    one = policy({"box": unpaced("20/1h"), "cloud": unpaced("10%/100"), "all": unpaced("30/1h")})
    terms = one.terms(PRICES)
    sent = []
    for seed in range(10):
        judgement = judged(37, 20 + seed)
        proposal = one.propose(judgement, terms, 0)
        choice, decided = one.permit(proposal, [37, 37])
        assert decided == 37
        assert proposal.able[choice >= 0, choice[choice >= 0]].all(), "nothing is asked about that does not pay"
        sent += choice.tolist()
    counts = np.array(sent)
    status = one.status()
    assert status is not None
    assert status["box"]["permits"] == (counts == 0).sum() <= 20
    assert status["cloud"]["permits"] == (counts == 1).sum()
    assert status["all"]["permits"] == (counts >= 0).sum() == 30
    assert np.convolve(counts == 1, np.ones(100)).max() <= 10
    assert {s["requests"] for s in status.values()} == {370}, "every input is one request of every limiter"


@pytest.mark.parametrize("costs", [None, PRICES])
def test_a_share_of_one_server_and_a_cap_over_all_hold_together(costs: Any) -> None:
    cap = unpaced("40/1h")
    one = policy({"cloud": "10%", "all": cap})
    choice = ask(one, HELD, costs)
    assert (choice >= 0).sum() == 40 == cap.status().used
    open_ended = ask(policy({"cloud": "10%", "all": unpaced("9999/1h")}), HELD, costs)
    assert (open_ended == 1).mean() == pytest.approx(0.1, abs=1e-3)
    # Without prices the limit over all is to be used up, so everything goes to some server.
    assert (open_ended == -1).any() == (costs is not None)


def test_limits_of_servers_alone_are_upper_bounds_without_prices_too() -> None:
    saving = np.maximum.reduce(policy().terms(FREE).gains(HELD)[0], axis=1)
    choice = ask(policy({"cloud": "10%"}), HELD, None)
    assert (choice == 1).mean() <= 0.1 + 1e-3
    assert not (choice[saving < 0] >= 0).any(), "asking is free, but a worse answer is not asked for"


def test_the_status_of_limiters_goes_by_the_names_that_were_given() -> None:
    two = (CLIENT, SERVER)
    for given, names in (({"server": "9/1h"}, {"server"}), ({"all": "9/1h"}, {"all"}), ({"server": "9%"}, None)):
        one = policy(given, judged(100, 1, two), two)
        one.terms(None)
        assert set(one.status() or ()) == (names or set())
    plain = policy("9/1h", None)
    plain.terms(None)
    assert (plain.status() or {})["limit"] == "9/1h"
    several = policy({"box": "9/1h", "cloud": "8/1h"}, None)
    several.terms(None)
    assert {name: s["limit"] for name, s in (several.status() or {}).items()} == {"box": "9/1h", "cloud": "8/1h"}


def test_where_a_limiter_refuses_the_next_best_server_that_pays_is_asked() -> None:
    q = np.array([[0.1, 0.1, 0.9, 0.99], [0.1, 0.1, 0.9, 0.99], [0.1, 0.1, 0.9, 0.99], [0.9, 0.9, 0.5, 0.99]])
    judgement, prices = Judgement(q, q, FOUR), {"box": Costs(0.1), "cloud": Costs(0.05)}
    assert ask(policy({"cloud": unpaced("1/1h")}, None), judgement, prices).tolist() == [1, 0, 0, -1]
    both = {"cloud": unpaced("1/1h"), "all": unpaced("2/1h")}
    assert ask(policy(both, None), judgement, prices).tolist() == [1, 0, -1, -1]
    assert both["all"].status().used == 2


def test_a_server_without_room_is_passed_over_and_the_rest_counts_as_asked() -> None:
    q = np.tile([[0.1, 0.1, 0.9, 0.99]], (5, 1))
    q[4] = [0.99, 0.1, 0.1, 0.1]
    judgement, prices = Judgement(q, q, FOUR), {"box": Costs(0.1), "cloud": Costs(0.05)}
    for limit in (None, {"cloud": unpaced("100/1h")}, {"all": unpaced("100/1h")}):
        one = policy(limit, None)
        proposal = one.propose(judgement, one.terms(prices), 0)
        assert one.permit(proposal, [5, None])[0].tolist() == [0, 0, 0, 0, -1]
        assert one.permit(proposal, [5, 2])[0].tolist() == [1, 1, 0, 0, -1]
        assert one.permit(proposal, [1, 2])[0].tolist() == [1, 1, 0, 1, -1], "the caller keeps the last"
        assert one.permit(proposal, [None, None])[0].tolist() == [1, 1, 1, 1, -1]


def test_after_a_failure_the_next_best_is_asked_with_permits_again() -> None:
    one = policy({"all": "30%/10"}, None)
    judgement, rows = judged(10, 30), np.arange(3)
    q = np.tile([[0.1, 0.1, 0.9, 0.99]], (10, 1))
    judgement = Judgement(q, q, FOUR)
    terms = one.terms(PRICES)
    first = one.permit(one.propose(judgement, terms, 0), [10, 10])[0]
    assert (first >= 0).sum() <= 3
    status = one.status()
    assert status is not None
    failed = np.flatnonzero(first == 1)
    left_out = one.without(terms, ("cloud",))
    again = one.permit(one.propose(judgement.rows(failed), left_out, 0), [10, 10], again=True)[0]
    assert (first >= 0).sum() + (again >= 0).sum() <= 3
    now = one.status()
    assert now is not None
    assert now["all"]["permits"] <= 3
    assert one.propose(judgement, terms, 0).rows(rows).gain.shape == (3, 2)


@pytest.mark.parametrize("limit", [{"all": "9/1h"}, {"box": "9/1h"}, {"box": "9/1h", "all": "9/1h"}])
def test_what_limiters_do_not_decide_in_time_is_not_asked_about(limit: Any) -> None:
    one = policy(limit)
    proposal = one.propose(judged(20, 50), one.terms(PRICES), 0)
    choice, decided = one.permit(proposal, [20, 20], until=time.monotonic() - 1)
    status = one.status()
    assert status is not None
    assert decided == 0
    assert (choice == -1).all()
    assert {s["used"] for s in status.values()} == {0}


def test_a_limiter_is_kept_from_call_to_call_by_its_name_and_limit() -> None:
    kept: dict[Any, Limiter] = {}
    sent = 0
    for seed in range(4):
        one = policy({"cloud": "5/1h", "box": "5/1h"}, kept=kept)
        sent += int((ask(one, judged(50, 40 + seed)) >= 0).sum())
    assert 0 < sent <= 10
    assert {name for name, _ in kept} == {"box", "cloud"}


def test_prices_that_stay_leave_the_ranks_of_a_servers_limiter() -> None:
    one = policy({"cloud": "5%/200"})
    one.terms(PRICES)
    terms = one.settle_on({"box": Costs(0.05), "cloud": Costs(0.02)})
    proposal = one.propose(HELD, terms, 0)
    sent = one.permit(proposal, [2000, 2000])[0]
    status = one.status()
    assert status is not None
    assert status["cloud"]["drift"] is None, "other prices are no drift"
    assert (sent == 1).sum() <= 100


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("limit", ["10%/500", {"cloud": "10%/500", "all": "20%/500"}])
@pytest.mark.parametrize("stays", [True, False], ids=["prices that stay", "prices of a call"])
def test_after_a_price_falls_a_limiter_picks_what_a_fresh_one_would(limit: Any, stays: bool, calibrated: bool) -> None:
    """While nothing pays no permit is spent, and what was remembered of that time must not count afterwards."""
    dear, kept = {"box": Costs(c_e=0.99), "cloud": Costs(c_e=0.99)}, {}
    held = HELD if calibrated else None
    before, after = judged(3000, 60), judged(1500, 61)
    used = policy(limit, held, kept=kept)
    assert (ask(used, before, dear) < 0).all()
    if stays:
        used.settle_on(PRICES)
    else:
        used = policy(limit, held, kept=kept)
    fresh = ask(policy(limit, held), after)
    assert (fresh >= 0).sum() > 30
    assert np.array_equal(ask(used, after), fresh)
    status = used.status()
    assert status is not None
    assert all(each["drift"] is None for each in (status if isinstance(limit, dict) else {"all": status}).values())


def test_nan_is_refused_whoever_it_is_of() -> None:
    for column in range(4):
        q = np.full((3, 4), 0.5)
        q[1, column] = math.nan
        one = policy()
        with pytest.raises(DataError, match="sample 1"):
            one.propose(Judgement(q, q, FOUR), one.terms(PRICES), 0)


@pytest.mark.parametrize(
    ("limit", "rule", "error", "message"),
    [
        ({"clout": "10%"}, None, LimitError, "clout; the servers are box, cloud, and 'all'"),
        ({"cloud": None}, None, LimitError, "cloud is None"),
        ({"cloud": "10 per hour"}, None, LimitError, "limit of cloud: .*10 per hour"),
        ({"cloud": "101%"}, None, LimitError, "limit of cloud: .*1.01"),
        ({"cloud": "10%@95%"}, None, LimitError, "cloud: 10%@95% has a confidence"),
        ({"cloud": "10%", "all": "20%@95%"}, None, LimitError, "all: 20%@95% has a confidence"),
        ({"cloud": "10%"}, "stochastic", SettingsError, "one share over all"),
        ({"cloud": "10%"}, "guaranteed", SettingsError, "one share over all"),
        ({"cloud": "10/1h"}, "threshold", SettingsError, "kept by the limiter"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limit: Any, rule: str | None, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        policy(limit, rule=rule)


def test_what_is_wrong_with_names_and_prices_is_said() -> None:
    shared = Limiter(RateLimit(1, per="1h"))
    with pytest.raises(LimitError, match="limits another name too"):
        policy({"cloud": shared, "all": shared})
    one = policy()
    with pytest.raises(CostError, match="given for nobody; the servers are box, cloud"):
        one.terms({})
    with pytest.raises(SettingsError, match="no server is called clout"):
        one.without(one.terms(PRICES), ("clout",))
    with pytest.raises(CostError, match="clout"):
        one.terms({"box": Costs(0.1), "clout": Costs(0.1)})
    with pytest.raises(CostError, match="not prices"):
        one.terms({"box": 0.1, "cloud": 0.2})  # type: ignore[dict-item]
    assert one.terms(dict(reversed(PRICES.items()))) is one.terms(PRICES), "in any order"
