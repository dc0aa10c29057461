"""What each method declares of itself, checked by what it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from losses_maker import TrainedFor, loss_of, prices_of
from methods_maker import (
    client_dealt_anew,
    clouds_bench,
    clouds_test,
    reordered,
    same_again,
    server_dealt_anew,
)
from torch import Tensor

from l2h import methods
from l2h.costs import Costs
from l2h.errors import DataError, SettingsError, UnknownNameError
from l2h.methods import Bench, Inputs, Learned, Method, Prices, Rule, Traits
from l2h.methods.base import FAMILIES
from l2h.methods.learned import local_score
from l2h.methods.posthoc import POSTHOC as POSTHOC_METHODS
from l2h.models.rejectors import client_view
from l2h.report.comparison.model import property_rows
from l2h.training import SamplePool

EVERY = methods.get(methods.known())
REJECTING = [method for method in EVERY if method.traits is not None]
LEARNED = [method for method in REJECTING if isinstance(method, Learned)]
PRICE = Costs(c_e=0.2, c_1=1.0)
#: A ranking that has changed has at least this share of its pairs in another order.
CHANGED = 0.01


def named(method: Method) -> str:
    return method.name


#: One that is trained after client and server; the others of that kind are in the long suite.
POSTHOC = [method.name for method in POSTHOC_METHODS if method.name != "diff-01"]
each_rejecting = pytest.mark.parametrize(
    "method",
    [pytest.param(method, marks=pytest.mark.long) if method.name in POSTHOC else method for method in REJECTING],
    ids=named,
)
each_learned = pytest.mark.parametrize("method", LEARNED, ids=named)


def classes_of(method: Method) -> int:
    return method.classes or 3


@cache
def twin(classes: int, deal: Callable[[Bench], Bench]) -> Bench:
    return deal(clouds_bench(classes))


@cache
def fitted(method: Method, deal: Callable[[Bench], Bench] = same_again) -> Rule:
    return method.fit(twin(classes_of(method), deal))


def inputs_for(method: Method) -> Inputs:
    return clouds_test(classes_of(method)).inputs


def score(method: Method, deal: Callable[[Bench], Bench] = same_again) -> np.ndarray:
    """The ranking of fixed inputs by the method, fitted on the bench with its outcomes dealt out so."""
    return fitted(method, deal).decide(inputs_for(method), PRICE).score


def other_answers(inputs: Inputs) -> Inputs:
    """The same inputs, each with what the client said of another."""
    return Inputs(inputs.X, inputs.client.at(np.random.default_rng(5).permutation(len(inputs))))


# The bench and its twins.


@pytest.mark.parametrize("classes", [2, 3])
def test_the_bench_has_something_to_learn_and_the_twins_have_as_much(classes: int) -> None:
    bench = clouds_bench(classes)
    test = clouds_test(classes)
    assert 0.3 < test.client_correct.mean() < test.server_correct.mean() < 0.98
    for deal in (same_again, client_dealt_anew, server_dealt_anew):
        dealt = twin(classes, deal)
        for one, other in (
            (bench.unseen, dealt.unseen),
            (bench.soft, dealt.soft),
            (bench.pools.stopping, dealt.pools.stopping),
        ):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
            assert one.client_correct.sum() == other.client_correct.sum()
            assert one.server_correct.sum() == other.server_correct.sum()
            assert torch.equal(one.client_correct, other.client_correct) == (deal is not client_dealt_anew)
            assert torch.equal(one.server_correct, other.server_correct) == (deal is not server_dealt_anew)
        held, moved = bench.calibration, dealt.calibration
        assert held.client_correct.sum() == moved.client_correct.sum()
        assert held.server_correct.sum() == moved.server_correct.sum()
        assert np.array_equal(held.client_correct, moved.client_correct) == (deal is not client_dealt_anew)
        assert np.array_equal(held.server_correct, moved.server_correct) == (deal is not server_dealt_anew)


# The four columns.


@each_rejecting
def test_a_separate_rejector_is_one_whose_ranking_needs_no_answer_of_the_client(method: Method) -> None:
    before, inputs = score(method), inputs_for(method)
    after = fitted(method).decide(other_answers(inputs), PRICE).score
    assert method.traits is not None
    if method.traits.separate:
        assert np.array_equal(after, before)
    else:
        assert reordered(after, before) > CHANGED


@each_rejecting
def test_learning_from_the_client_is_to_rank_otherwise_where_the_client_does_otherwise(method: Method) -> None:
    """A learned rejector is fitted to other outcomes; a rule on the client's scores is handed other scores."""
    if isinstance(method, Learned):
        after = score(method, client_dealt_anew)
    else:
        after = fitted(method).decide(other_answers(inputs_for(method)), PRICE).score
    assert method.traits is not None
    assert method.traits.learns_client
    assert reordered(after, score(method)) > CHANGED


@each_rejecting
def test_learning_from_the_server_is_to_rank_otherwise_where_it_is_right_on_others(method: Method) -> None:
    """As often right as before, but on other samples: who knows the share alone ranks as before, to the bit."""
    before, after = score(method), score(method, server_dealt_anew)
    assert method.traits is not None
    if method.traits.learns_server:
        assert reordered(after, before) > CHANGED
    else:
        assert np.array_equal(after, before)


class ServerAlone(Learned):
    """A separate rejector that learns only when the server is right."""

    name, title, equation = "server-alone", "Server alone", "psi(g_d) where e = y, else psi(-g_d)"
    net = "separate"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        defer = -local_score(scores)
        target = pool.server_correct.float().expand(defer.shape)
        return torch.nn.functional.binary_cross_entropy_with_logits(defer, target, reduction="none")


def test_a_rejector_that_does_not_learn_from_the_client_would_be_found_out() -> None:
    method = ServerAlone()
    before = score(method)
    assert np.array_equal(score(method, client_dealt_anew), before)
    assert reordered(score(method, server_dealt_anew), before) > CHANGED


def one_input(classes: int) -> tuple[SamplePool, Tensor, Tensor]:
    """One input and every label as often as its posterior says; the two classifiers' scores as leaves of the graph."""
    y = torch.tensor([0] * 6 + [1] * 4) if classes == 2 else torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    n = len(y)
    client = torch.tensor([0.7, 0.2, 0.1][:classes], dtype=torch.float64).log().requires_grad_()
    server = torch.tensor([0.25, 0.75, 0.0] if classes == 2 else [0.2, 0.7, 0.1], dtype=torch.float64)[:classes]
    server.requires_grad_()
    client_correct, server_correct = client.argmax() == y, server.argmax() == y
    pool = SamplePool(
        x=torch.zeros(n, 1),
        view=client_view(client.expand(n, classes)),
        y=y,
        client_correct=client_correct,
        server_correct=server_correct,
        server_probability=server.expand(n, classes),
        client_target=client_correct.double(),
        server_target=server_correct.double(),
        teacher=torch.full((n, classes), 1 / classes, dtype=torch.float64),
    )
    return pool, client, server


def at_the_best_score(method: Learned, pool: SamplePool, prices: TrainedFor) -> Tensor:
    """The method's mean loss on one input, at the rejector's numbers that minimise it."""
    numbers = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15,
                                  line_search_fn="strong_wolfe")  # fmt: skip

    def loss() -> Tensor:
        return loss_of(method, numbers.expand(1, len(pool), 2), pool, prices).mean()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward(inputs=[numbers], retain_graph=True)
        return value

    optimizer.step(closure)
    assert float(torch.autograd.grad(loss(), numbers, retain_graph=True)[0].abs().max()) < 1e-7
    return loss()


@each_learned
def test_asynchronous_is_a_loss_that_trains_the_rejector_alone(method: Learned) -> None:
    """At the rejector's best score a loss that trains a classifier as well still has a slope in that one's scores.

    One that takes the classifier's score only to compare the rejector's with it has none left there.
    """
    pool, client, server = one_input(classes_of(method))
    loss = at_the_best_score(method, pool, prices_of([Costs(c_e=0.1, c_1=0.6)]))
    slopes = torch.autograd.grad(loss, [client, server], allow_unused=True)
    steepest = max(0.0 if slope is None else float(slope.abs().max()) for slope in slopes)
    assert method.traits is not None
    if method.traits.asynchronous is False:
        assert steepest > 1e-2
    else:
        assert steepest < 1e-6


@each_learned
def test_nothing_is_said_of_asynchronous_training_where_the_loss_has_no_server(method: Learned) -> None:
    pool = one_input(classes_of(method))[0]
    other = replace(
        pool,
        server_correct=~pool.server_correct,
        server_target=1 - pool.server_target,
        server_probability=pool.server_probability.flip(-1),
        teacher=pool.teacher.flip(-1),
    )
    scores = torch.tensor([0.4, -0.3], dtype=torch.float64).expand(1, len(pool), 2)
    prices = prices_of([Costs(c_e=0.1, c_1=0.6)])
    same = torch.equal(loss_of(method, scores, pool, prices), loss_of(method, scores, other, prices))
    assert method.traits is not None
    assert same == (method.traits.asynchronous is None)


def test_nor_where_nothing_is_trained() -> None:
    untrained = [method for method in REJECTING if not isinstance(method, Learned)]
    assert {method.family for method in untrained} == {"confidence"}
    assert all(method.traits == Traits(False, True, False, None) for method in untrained)


# The property table of the paper: "Difference among surrogate loss function proposed in LWA and L2D".

#: Separate rejector, rejector learns m(x), rejector learns e(x), async.
PRINTED = {
    "confidence": "x v x -",
    "lwa-separate": "v v x -",
    "softmax-l2d": "x v v x",
    "ova-l2d": "x v v x",
    "two-stage-confidence": "x v v v",
    "two-stage-separate": "v x v v",
    "l2h-paper": "v v v v",
}
MARKS = {"v": "yes", "x": "no", "-": "–"}  # noqa: RUF001
VALUES = {"v": True, "x": False, "-": None}


def test_what_is_said_to_be_published_is_what_the_paper_prints() -> None:
    published = {method.name: method.published_traits for method in EVERY if method.published_traits is not None}
    assert published == {name: Traits(*(VALUES[mark] for mark in row.split())) for name, row in PRINTED.items()}


def test_the_property_table_is_the_papers_but_for_one_cell() -> None:
    rows, notes = property_rows([method.card() for method in EVERY])
    generated = {name: answers for name, answers in rows if name in PRINTED}
    expected = {name: [MARKS[mark] for mark in row.split()] for name, row in PRINTED.items()}
    assert generated.keys() == expected.keys()
    differing = [
        (name, column, answers[column])
        for name, answers in generated.items()
        for column in range(4)
        if answers[column] != expected[name][column]
    ]
    assert differing == [("two-stage-separate", 1, "yes*")]
    assert len(notes) == 1
    assert "two-stage-separate" in notes[0]


def test_that_cell_is_in_its_published_loss() -> None:
    """The loss of the predictor-rejector form is another where the client is wrong."""
    (method,) = methods.get(["two-stage-separate"])
    pool = one_input(3)[0]
    scores = torch.tensor([0.4, -0.3], dtype=torch.float64).expand(1, len(pool), 2)
    prices = prices_of([PRICE])
    right, wrong = (
        loss_of(method, scores, replace(pool, client_correct=torch.full((len(pool),), right)), prices)
        for right in (True, False)
    )
    assert bool((right < wrong).all())


# What a method says of itself, and how it is called.


@pytest.mark.parametrize("method", EVERY, ids=named)
def test_every_method_says_what_it_is_and_where_it_comes_from(method: Method) -> None:
    card = method.card()
    assert json.loads(json.dumps(card)) == card
    assert card["title"].strip()
    assert card["equation"].strip()
    assert card["family"] in FAMILIES
    assert (card["traits"] is None) == (card["family"] in ("trivial", "reference"))
    if card["traits"] is not None:
        assert card["reference"].strip(), "who proposed it"
    if card["family"] == "learned" and not card["ours"]:
        assert card["change"].strip(), "made for another setting: what had to change"


def test_names_and_titles_are_their_own() -> None:
    assert len({method.name for method in EVERY}) == len({method.title for method in EVERY}) == len(EVERY)
    assert [method.name for method in EVERY] == methods.known()
    assert methods.DEFAULT in methods.known()


def test_methods_are_given_in_the_order_of_tables_whatever_the_order_of_the_names() -> None:
    assert [method.name for method in methods.get(["oracle", "margin", "random"])] == ["random", "margin", "oracle"]
    assert methods.get([]) == []


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="'softmax'") as caught:
        methods.get(["confidence", "softmax"])
    assert all(name in str(caught.value) for name in methods.known())


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'margin' is named twice"):
        methods.get(["margin", "random", "margin"])


def test_a_method_for_two_classes_refuses_three() -> None:
    (method,) = methods.get(["binary-l2h"])
    method.check(2)
    with pytest.raises(SettingsError, match=r"'binary-l2h' is for 2 classes, the data have 3: .*--classes"):
        method.check(3)
    for other in EVERY:
        if other.name != "binary-l2h":
            other.check(3)


def test_a_learned_rule_refuses_a_price_it_was_not_fitted_for() -> None:
    (method,) = methods.get(["swapped-separate"])
    with pytest.raises(SettingsError, match=r"swapped-separate was fitted for c_1=1, c_e=0.05, .*not c_1=1, c_e=0.3"):
        fitted(method).decide(inputs_for(method), Costs(c_e=0.3))


@pytest.mark.parametrize("name", ["oracle", "label-free"])
def test_a_reference_refuses_to_decide_on_what_a_device_knows(name: str) -> None:
    (method,) = methods.get([name])
    with pytest.raises(DataError, match="decide_knowing"):
        fitted(method).decide(inputs_for(method), PRICE)
