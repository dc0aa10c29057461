"""The prices: what they accept, what they refuse, and that only their ratios matter to a decision."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from properties import examples

from l2h.costs import Costs, as_bool, cost_grid, generalized_loss, local_loss, remote_loss
from l2h.decision import Judgement, oracle
from l2h.errors import CostError

price = st.floats(0.0, 10.0)
share = st.floats(0.0, 1.0)
bits = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=20)


def stated(q_m: float, q_e: float) -> Judgement:
    right = np.array([[q_m, q_e]])
    return Judgement(right, right)


@st.composite
def four_costs(draw: st.DrawFn) -> Costs:
    """Any costs in which a wrong answer costs no less than a right one, and more on the client's side."""
    c_cc, gap = draw(st.floats(0.0, 5.0)), draw(st.floats(0.01, 5.0))
    c_sc, wrong = draw(st.floats(0.0, 5.0)), draw(st.floats(0.0, 5.0))
    return Costs.from_outcomes(c_cc, c_cc + gap, c_sc, c_sc + wrong)


def affine(costs: Costs, scale: float, offset: float) -> Costs:
    four = (costs.c_cc, costs.c_ce, costs.c_sc, costs.c_se)
    return Costs.from_outcomes(*(scale * c + offset for c in four))


@examples(200)
@given(c_e=st.floats(0.0, 2.0), c_1=st.floats(0.01, 10.0))
def test_the_two_numbers_come_back_as_they_went_in(c_e: float, c_1: float) -> None:
    costs = Costs(c_e=c_e, c_1=c_1)
    assert costs.c_e == c_e
    # c_se holds c_e + c_1 with a rounding error below 1e-15, which is 1e-13 of the smallest c_1 here.
    assert costs.c_1 == pytest.approx(c_1, rel=1e-12, abs=0)
    assert (costs.c_cc, costs.c_ce, costs.c_sc) == (0.0, 1.0, c_e)
    assert costs.highest == max(1.0, c_e + c_1)


@examples(200)
@given(c_e=st.integers(0, 2000), c_1=st.integers(0, 2000))
def test_prices_written_in_decimals_come_back_exactly(c_e: int, c_1: int) -> None:
    assert Costs(c_e=c_e / 1000, c_1=c_1 / 1000).c_1 == c_1 / 1000


@examples(200)
@given(c_e=price, c_1=price, four=four_costs())
def test_as_dict_and_from_dict_are_inverse(c_e: float, c_1: float, four: Costs) -> None:
    two = Costs(c_e=c_e, c_1=c_1)
    assert set(two.as_dict()) == {"c_e", "c_1"}
    back = Costs.from_dict(two.as_dict())
    # The same to the last bit, but for a sum that falls midway between two floats.
    assert (back.c_cc, back.c_ce, back.c_sc) == (two.c_cc, two.c_ce, two.c_sc)
    assert abs(back.c_se - two.c_se) <= math.ulp(two.c_se)
    assert Costs.from_dict(four.as_dict()) == four


@pytest.mark.parametrize(("c_e", "c_1"), [(0.0, 1 / 3), (0.705, 1.8043319008791654), (0.0, 1e-20), (0.1, 2 / 7)])
def test_prices_of_many_digits_survive_the_dictionary(c_e: float, c_1: float) -> None:
    costs = Costs(c_e=c_e, c_1=c_1)
    assert Costs.from_dict(costs.as_dict()) == costs


@examples(200)
@given(costs=four_costs(), scale=st.floats(0.1, 50.0), offset=st.floats(0.0, 50.0), q_m=share, q_e=share)
def test_an_affine_change_of_the_four_costs_changes_no_decision(
    costs: Costs, scale: float, offset: float, q_m: float, q_e: float
) -> None:
    changed = affine(costs, scale, offset)
    saving = (costs.c_ce + (costs.c_cc - costs.c_ce) * q_m) - (costs.c_se + (costs.c_sc - costs.c_se) * q_e)
    # Rounding of the changed costs (at most about 550) is below 1e-12: wider margins must decide alike.
    assume(abs(saving) > 1e-9)
    expected = saving > 0
    assert stated(q_m, q_e).remote(costs)[0] == expected
    assert stated(q_m, q_e).remote(changed)[0] == expected
    if costs.c_e >= 0:  # a right server that is cheaper than a right client has no two-number form
        assert stated(q_m, q_e).remote(Costs(c_e=costs.c_e, c_1=costs.c_1))[0] == expected
    # c_e and c_1 are divided by a gap of at least 0.01 times the scale of at least 0.1.
    assert changed.c_e == pytest.approx(costs.c_e, rel=1e-9, abs=1e-9)
    assert changed.c_1 == pytest.approx(costs.c_1, rel=1e-9, abs=1e-9)


@examples(200)
@given(costs=four_costs(), scale=st.floats(0.1, 50.0), offset=st.floats(0.0, 50.0), outcomes=bits)
def test_an_affine_change_of_the_four_costs_changes_every_loss_alike(
    costs: Costs, scale: float, offset: float, outcomes: list[tuple[bool, bool, bool]]
) -> None:
    client, server, remote = (np.array(column) for column in zip(*outcomes, strict=True))
    before = generalized_loss(client, server, remote, costs)
    after = generalized_loss(client, server, remote, affine(costs, scale, offset))
    # One product and one sum of doubles.
    np.testing.assert_allclose(after, scale * before + offset, rtol=1e-14)


@examples(200)
@given(costs=four_costs(), scale=st.sampled_from([0.25, 0.5, 2.0, 1024.0]), outcomes=bits)
def test_another_currency_keeps_the_oracle(costs: Costs, scale: float, outcomes: list[tuple[bool, bool, bool]]) -> None:
    # Powers of two are exact, so not even a tie may move.
    client, server, _ = (np.array(column) for column in zip(*outcomes, strict=True))
    assert (oracle(client, server, costs) == oracle(client, server, costs.scaled(scale))).all()
    assert costs.scaled(scale).c_e == costs.c_e


@examples(200)
@given(costs=four_costs(), outcomes=bits)
def test_the_generalized_loss_is_the_sum_of_its_four_indicators(
    costs: Costs, outcomes: list[tuple[bool, bool, bool]]
) -> None:
    client, server, remote = (np.array(column) for column in zip(*outcomes, strict=True))
    by_terms = [
        costs.c_cc * (m and not r)
        + costs.c_ce * (not m and not r)
        + costs.c_sc * (e and r)
        + costs.c_se * (not e and r)
        for m, e, r in outcomes
    ]
    # Three of the four terms are exact zeros: nothing rounds.
    assert generalized_loss(client, server, remote, costs).tolist() == by_terms


def test_the_two_number_loss_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    client, server, remote = rng.random((3, 500)) < 0.5
    for c_e, c_1 in rng.uniform(0, 2, (50, 2)):
        costs = Costs(c_e=c_e, c_1=c_1)
        wrong_local = (~client).astype(float)
        price_remote = c_e + c_1 * (~server)
        assert (local_loss(client, costs) == wrong_local).all()
        assert (remote_loss(server, costs) == price_remote).all()
        expected = [price_remote[i] if remote[i] else wrong_local[i] for i in range(500)]
        assert generalized_loss(client, server, remote, costs).tolist() == expected


@examples(200)
@given(c_e=price, c_1=price, q_m=share, q_e=share)
def test_expected_saving_is_the_mean_over_the_outcomes(c_e: float, c_1: float, q_m: float, q_e: float) -> None:
    saving = stated(q_m, q_e).saving(Costs(c_e=c_e, c_1=c_1))[0]
    # A handful of operations on numbers of at most 20.
    assert saving == pytest.approx((1 - q_m) - c_e - c_1 * (1 - q_e), abs=1e-13)


@pytest.mark.parametrize(
    "bad",
    [
        -0.1,
        -1e-300,
        math.nan,
        math.inf,
        -math.inf,
        "0.1",
        "cheap",
        b"1",
        None,
        [0.1, 0.2],
        1j,
        pytest.param(10**400, id="overflow"),
    ],
)
@pytest.mark.parametrize("name", ["c_e", "c_1"])
def test_a_price_that_is_no_price_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(CostError, match=name):
        Costs(**{"c_e": 0.1, "c_1": 1.0, name: bad})


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None])
@pytest.mark.parametrize("name", ["c_cc", "c_ce", "c_sc", "c_se"])
def test_a_four_cost_price_that_is_no_price_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(CostError, match=name):
        Costs.from_outcomes(**{"c_cc": 0.0, "c_ce": 1.0, "c_sc": 0.1, "c_se": 1.1, name: bad})


def test_prices_whose_sum_overflows_are_refused() -> None:
    with pytest.raises(CostError, match="not finite"):
        Costs(c_e=1e308, c_1=1e308)


@pytest.mark.parametrize("four", [(1.0, 1.0, 0.1, 1.1), (2.0, 1.0, 0.1, 1.1), (0.0, 0.0, 0.0, 0.0)])
def test_a_right_local_answer_must_cost_less_than_a_wrong_one(four: tuple[float, ...]) -> None:
    with pytest.raises(CostError, match="c_cc"):
        Costs.from_outcomes(*four)


def test_a_right_remote_answer_may_cost_as_much_as_a_wrong_one_but_not_more() -> None:
    assert Costs.from_outcomes(0.0, 1.0, 0.5, 0.5).c_1 == 0.0
    with pytest.raises(CostError, match="c_sc"):
        Costs.from_outcomes(0.0, 1.0, 0.6, 0.5)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_a_currency_without_value_is_refused(factor: float) -> None:
    with pytest.raises(CostError, match="factor"):
        Costs(c_e=0.1).scaled(factor)


def test_costs_cannot_be_changed_and_are_equal_by_value() -> None:
    costs = Costs(c_e=0.1, c_1=1.25)
    with pytest.raises(AttributeError):
        costs.c_sc = 0.2  # type: ignore[misc]
    assert costs == Costs.from_outcomes(0, 1, 0.1, 0.1 + 1.25)
    assert len({costs, Costs(c_e=0.1, c_1=1.25), Costs(c_e=0.2, c_1=1.25)}) == 2


def test_the_grid_holds_every_pair_in_order() -> None:
    grid = cost_grid([1.0, 1.25], np.linspace(0.0, 0.5, 21))
    pairs = [(one, e) for one in (1.0, 1.25) for e in np.linspace(0.0, 0.5, 21)]
    assert [(c.c_1, c.c_e) for c in grid] == pairs


@pytest.mark.parametrize(
    ("c_1", "c_e", "named"),
    [([], [0.1], "c_1"), ([1.0], [], "c_e"), ([1.0, 1.0], [0.1], "c_1"), ([1.0], [0.1, 0.2, 0.1], "c_e")],
)
def test_a_grid_that_is_empty_or_repeats_itself_is_refused(c_1: list[float], c_e: list[float], named: str) -> None:
    with pytest.raises(CostError, match=named):
        cost_grid(c_1, c_e)


def test_outcomes_are_booleans_or_zero_and_one() -> None:
    assert as_bool("x", [1, 0, 1]).tolist() == [True, False, True]
    for bad in ([0, 2], [0.5], [math.nan], ["yes"]):
        with pytest.raises(ValueError, match="x must be boolean"):
            as_bool("x", bad)
