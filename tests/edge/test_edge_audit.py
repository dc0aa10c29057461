"""Audits: a random share of what would be kept is asked about, within every limit, and nobody's answer gets worse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clouds import samples
from edge_maker import ALL, NONE, X_TEST, scores_of
from two_servers import PRICES, make
from waiting import Stopwatch

from l2h import AsyncEdgeClient, Costs, EdgeClient, Limiter, RateLimit
from l2h.audits import AuditError, AuditLog, audit_report, read_audits
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeSettingsError
from l2h.errors import DataError
from l2h.limits import LimitError

MANY = samples(4000, 9)[0]
PRICE = Costs(c_e=0.2)


@pytest.fixture(scope="module")
def model(folder):
    return scores_of(folder)


@pytest.fixture(scope="session")
def two(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A bundle with a box, a cloud and a second opinion."""
    return once("two-opinion", lambda path: make(second_opinion=True).export(path, name="clouds", costs=PRICES))


def test_everything_audited_gives_the_better_answer_at_the_price_of_asking(connect, bundle, model, tmp_path):
    edge = connect(model, deadline=20.0, costs=PRICE, audit=1.0, audits=tmp_path)
    answers = edge.predict(X_TEST)
    client, judgement = bundle.judge(X_TEST)
    server = model(X_TEST).argmax(axis=1)
    kept = ~judgement.remote(PRICE)
    assert 0 < kept.sum() < len(kept)
    assert answers.reason.tolist() == np.where(kept, "audit", "worth_asking").tolist()
    # The price is paid in any case, so whoever is more likely right answers: at these prices both err at the same cost.
    p = judgement.probability
    by_server = ~kept | (p[:, 1] >= p[:, 0])
    assert (kept & by_server).any()
    np.testing.assert_array_equal(answers.source == "remote", by_server)
    np.testing.assert_array_equal(answers.label, np.where(by_server, server, client))
    np.testing.assert_allclose(answers.cost, PRICE.c_e)
    # What is kept are the pairs, as both sides gave them.
    pairs = read_audits(tmp_path)
    order = [pairs.id.index(id) for id in answers.id]
    np.testing.assert_array_equal(pairs.client[order], client)
    np.testing.assert_array_equal(pairs.server[order], server)
    np.testing.assert_array_equal(pairs.asked[order], ~kept)
    np.testing.assert_allclose(pairs.heads[order], judgement.scores)
    np.testing.assert_allclose(pairs.stated[order], p)
    assert set(pairs.reason[pairs.asked]) == {"worth_asking"}
    assert set(pairs.reason[~pairs.asked]) == {"not_worth_asking"}
    stats = edge.stats()
    assert (stats.audit["drawn"], stats.audit["answered"], stats.audit["pairs"]) == (kept.sum(), kept.sum(), len(kept))
    assert (stats.reasons["audit"], stats.servers["server"].answers) == (kept.sum(), len(kept))


@pytest.mark.parametrize("way", ["one by one", "at once", "async"])
def test_a_share_is_drawn_and_the_rest_is_as_without(connect, bundle, model, tmp_path, way):
    log = AuditLog(tmp_path, seed=3)
    options: dict[str, Any] = {"deadline": 20.0, "costs": PRICE, "audit": 0.1, "audits": log}
    many = MANY[:600]
    kept = ~bundle.judge(many)[1].remote(PRICE)

    async def asynchronously():
        async with AsyncEdgeClient(bundle, model, **options) as edge:
            return [*await edge.predict(many)], edge.stats()

    if way == "async":
        answers, stats = asyncio.run(asynchronously())
    else:
        edge = connect(model, **options)
        answers = [*edge.predict(many)] if way == "at once" else [edge.predict(x)[0] for x in many]
        stats = edge.stats()
    audited = np.array([answer.reason == "audit" for answer in answers])
    assert not audited[~kept].any()
    assert abs(audited.sum() - 0.1 * kept.sum()) < 4 * np.sqrt(0.09 * kept.sum())
    alone = connect(model, deadline=20.0, costs=PRICE).predict(many)
    same = [
        (a.label, a.source, a.reason, a.cost) == (b.label, b.source, b.reason, b.cost)
        for a, b in zip(answers, alone, strict=True)
    ]
    assert all(np.array(same) | audited)
    pairs = read_audits(tmp_path)
    # Of what is asked anyway ten times the share is kept: all of it here.
    assert pairs.asked.sum() == (~kept).sum()
    assert (~pairs.asked).sum() == audited.sum() == stats.audit["answered"]
    assert {answer.id for answer in answers} - {""} == set(pairs.id)
    assert set(pairs.probability[pairs.asked]) == {1.0}
    assert set(pairs.probability[~pairs.asked]) == {0.1}


def test_every_start_draws_others_and_without_an_audit_nothing_is_kept(connect, model, tmp_path):
    drawn = []
    for _ in range(2):
        edge = connect(model, deadline=20.0, costs=NONE, audit=0.5, audits=tmp_path)
        drawn.append((edge.predict(X_TEST).reason == "audit").tolist())
    assert drawn[0] != drawn[1]
    edge = connect(model, costs=NONE, audits=tmp_path / "never")
    assert edge.predict(X_TEST[:1]).id is None
    assert edge.stats().audit is None
    assert not (tmp_path / "never").exists()
    with pytest.raises(EdgeSettingsError, match="feedback belongs to an audit"):
        edge.feedback("a", 1)


@pytest.mark.parametrize("limit", ["20%/50", "10%+-5", "40/1h", {"all": "20%/50", "server": "15%/40"}])
@pytest.mark.parametrize("prices", [None, Costs(c_e=0.05)])
def test_a_limit_that_is_kept_at_run_time_is_kept_with_audits(bundle, model, tmp_path, limit, prices):
    asked = []
    many = MANY[:300]

    def function(x):
        asked.extend(map(bytes, x))
        return model(x)

    with EdgeClient(bundle, function, deadline=20.0, costs=prices, limit=limit, audit=0.3, audits=tmp_path) as edge:
        answers = [edge.predict(x)[0] for x in many[:150]] + [*edge.predict(many[150:])]
    places = {bytes(x): i for i, x in enumerate(many)}
    sent = np.zeros(len(many), dtype=int)
    sent[[places[each] for each in asked]] += 1
    assert sent.max() == 1
    assert sum(answer.reason == "audit" for answer in answers) > 3
    assert sent.sum() == sum(answer.reason in ("audit", "worth_asking", "within_limit") for answer in answers)
    window = np.convolve(sent, np.ones(50, dtype=int), "valid")
    most = {"20%/50": window.max() <= 10, "40/1h": sent.sum() <= 40}
    tracked = [
        abs(sent[i:j].sum() - 0.1 * (j - i)) <= 5 or sent[i:j].sum() < 0.1 * (j - i)
        for i in range(0, 300, 7)
        for j in range(i, 300, 7)
    ]
    narrow = np.convolve(sent, np.ones(40, dtype=int), "valid")
    most |= {"10%+-5": all(tracked)}
    assert most[limit] if isinstance(limit, str) else (window.max() <= 10 and narrow.max() <= 6)


@pytest.mark.parametrize("size", [64, 3000])
def test_a_hard_limit_of_inputs_holds_for_audits_in_batches_at_their_own_places(bundle, model, tmp_path, size):
    asked, log = [], AuditLog(tmp_path, seed=2)
    many = MANY[:3000]

    def function(x):
        asked.extend(map(bytes, x))
        return model(x)

    with EdgeClient(bundle, function, deadline=60.0, costs=PRICE, limit="10%/200", audit=0.05, audits=log) as edge:
        for start in range(0, len(many), size):
            edge.predict(many[start : start + size])
        stats = edge.stats().audit
    places = {bytes(x): i for i, x in enumerate(many)}
    sent = np.zeros(len(many), dtype=int)
    sent[[places[each] for each in asked]] = 1
    assert np.convolve(sent, np.ones(200, dtype=int), "valid").max() <= 20
    # The pairs stand for the inputs that came, although the limit refused a part of the audits.
    own = sent.sum() - stats["answered"]
    asked_share = audit_report(tmp_path).asked_share
    assert asked_share.low <= own / len(many) <= asked_share.high
    # Whether the inputs come one by one or at once, about as many audits find a permit.
    assert stats["answered"] > 0.4 * stats["drawn"]
    assert stats["answered"] + sum(stats["unanswered"].values()) == stats["drawn"]


@pytest.mark.parametrize("limit", ["20%", "20%@90%"])
def test_a_share_by_calibration_has_room_for_the_audits(bundle, model, tmp_path, limit):
    """The threshold leaves the share that audits take of the rest, so that both together meet the limit."""

    def share(audit: float) -> float:
        log = AuditLog(tmp_path, seed=1)
        with EdgeClient(bundle, model, deadline=60.0, limit=limit, audit=audit, audits=log) as edge:
            return float(np.isin(edge.predict(MANY).reason, ["audit", "worth_asking", "within_limit"]).mean())

    plain, audited = share(0.0), share(0.1)
    # A tenth of the rest is asked by chance; the threshold itself is of 400 calibration samples.
    assert abs(audited - plain) < 0.05
    assert audited < max(0.2, plain) + 0.02
    with pytest.raises(LimitError, match=r"audit=0.3 takes all of the limit 20%"):
        share(0.3)


@pytest.mark.parametrize("limit", [{"cloud": "10%", "all": "20%"}, {"box": "8%", "cloud": "8%"}])
def test_shares_of_several_servers_have_room_for_their_audits(two, tmp_path, limit):
    runs = {name: ServerBundle(two, server=name).run for name in PRICES}
    prices = None if "all" in limit else {"box": Costs(c_e=0.01), "cloud": Costs(c_e=0.01)}
    device = DeviceBundle(two)

    def shares(audit: float) -> dict[str, float]:
        options = {"costs": prices, "limit": limit, "audit": audit, "audits": tmp_path, "deadline": 60.0}
        with EdgeClient(device, runs, **options) as edge:
            edge.predict(MANY)
            own = {name: edge.stats().servers[name].answers / len(MANY) for name in runs}
        return own | {"all": sum(own.values())}

    plain, audited = shares(0.0), shares(0.04)
    # What is asked by chance is in the share; what the calibration samples let through beyond it is in both.
    assert all(audited[name] < plain[name] + 0.015 for name in limit)


def test_a_server_that_fails_leaves_the_answer_that_would_be_kept(connect, bundle, tmp_path):
    def fail(x):
        raise ConnectionRefusedError("no")

    edge = connect(fail, deadline=5.0, costs=NONE, audit=1.0, audits=tmp_path, failures=3)
    answers = [edge.predict(x)[0] for x in X_TEST[:5]]
    assert [(a.reason, a.source, a.cost) for a in answers] == [("not_worth_asking", "local", 0.0)] * 5
    assert [a.label for a in answers] == bundle.judge(X_TEST[:5])[0].tolist()
    stats = edge.stats()
    assert stats.audit["unanswered"] == {"server_unreachable": 3, "circuit_open": 2}
    assert (stats.audit["drawn"], stats.audit["answered"]) == (5, 0)
    assert stats.reasons == {"not_worth_asking": 5}
    # What was sent and not answered is told; what could not be sent is no part of the sample.
    pairs = read_audits(tmp_path)
    assert pairs.fault.tolist() == ["server_unreachable"] * 3
    assert not pairs.answered.any()


def test_an_audit_does_not_outlast_the_deadline(connect, server, tmp_path):
    server.mode = "silent"
    edge = connect(server.url, deadline=0.15, costs=NONE, audit=1.0, audits=tmp_path)
    with Stopwatch() as watch:
        answer = edge.predict(X_TEST[:1])[0]
    assert watch.seconds < 0.3
    assert (answer.reason, answer.source) == ("not_worth_asking", "local")
    assert edge.stats().audit["unanswered"] == {"deadline": 1}


def test_a_label_may_follow_its_answer_at_once(bundle, model, tmp_path):
    async def ask_and_label(edge, x):
        (answer,) = await edge.predict(x[None])
        await edge.feedback(answer.id, 1)

    async def asynchronously():
        async with AsyncEdgeClient(bundle, model, deadline=20.0, costs=NONE, audit=1.0, audits=tmp_path) as edge:
            await asyncio.gather(*(ask_and_label(edge, x) for x in X_TEST))

    asyncio.run(asynchronously())
    assert read_audits(tmp_path).label.tolist() == [1] * len(X_TEST)


def test_labels_come_later_also_after_a_restart(bundle, model, tmp_path):
    with EdgeClient(bundle, model, deadline=20.0, costs=NONE, audit=0.5, audits=tmp_path) as edge:
        answers = edge.predict(X_TEST)
    known = [id for id in answers.id if id]
    assert 0 < len(known) < len(X_TEST)
    with EdgeClient(bundle, model, deadline=20.0, costs=NONE, audit=0.5, audits=tmp_path) as edge:
        edge.feedback(known[0], 2)
        edge.feedback(known[1], np.int64(1))
        edge.feedback(known[1], 0)
        with pytest.raises(AuditError, match=r"no pair in .* has the id ''"):
            edge.feedback("", 1)
        with pytest.raises(AuditError, match=r"no pair in .* has the id 'never'"):
            edge.feedback("never", 1)
        with pytest.raises(DataError, match=r"feedback: label 7 in row 0 is not in 0\.\.2"):
            edge.feedback(known[0], 7)
        assert edge.stats().audit["labels"] == 3

    async def asynchronously():
        async with AsyncEdgeClient(bundle, model, audit=0.5, audits=tmp_path) as edge:
            await edge.feedback(known[2], 1)

    asyncio.run(asynchronously())
    pairs = read_audits(tmp_path)
    assert {id: label for id, label in zip(pairs.id, pairs.label.tolist(), strict=True) if label >= 0} == {
        known[0]: 2,
        known[1]: 0,
        known[2]: 1,
    }


def test_of_several_servers_each_is_audited_as_often_and_a_student_may_be_the_better_one(two, tmp_path):
    device = DeviceBundle(two)
    runs = {name: ServerBundle(two, server=name).run for name in PRICES}
    prices = {"box": Costs(c_e=0.1), "cloud": Costs(c_e=0.1)}
    many = MANY[:1000]
    with EdgeClient(device, runs, deadline=60.0, costs=prices, audit=0.5, audits=tmp_path) as edge:
        answers = edge.predict(many)
    pairs = read_audits(tmp_path)
    rows = [pairs.id.index(id) for id in answers.id if id]
    client, student, _ = device.examine(many)
    chosen = np.flatnonzero(answers.id != "")
    np.testing.assert_array_equal(pairs.client[rows], client[chosen])
    np.testing.assert_array_equal(pairs.student[rows], student[chosen])
    assert set(pairs.local.tolist()) == {0, 1}
    audited = pairs.rows(~pairs.asked)
    assert set(audited.probability) == {0.25}
    counts = np.bincount(audited.by, minlength=4)[2:]
    assert abs(counts[0] - counts[1]) < 4 * np.sqrt(counts.sum())
    for j, name in ((2, "box"), (3, "cloud")):
        mine = audited.rows(audited.by == j)
        inputs = many[[int(np.flatnonzero(answers.id == id)[0]) for id in mine.id]]
        np.testing.assert_array_equal(mine.server, runs[name](inputs).argmax(axis=1))
    # A server without an address is not audited.
    with EdgeClient(
        device, {"box": runs["box"]}, deadline=60.0, costs=prices, audit=1.0, audits=tmp_path / "b"
    ) as edge:
        edge.predict(many[:50])
    assert set(read_audits(tmp_path / "b").by.tolist()) == {2}


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "1%", True, None])
def test_a_share_out_of_its_range_is_refused(connect, model, share, tmp_path):
    with pytest.raises(EdgeSettingsError, match=r"audit=.* must be a share from 0 to 1"):
        connect(model, audit=share, audits=tmp_path)


def test_an_audit_needs_a_server_and_a_folder(connect, model, tmp_path):
    with pytest.raises(EdgeSettingsError, match="asks about nothing"):
        connect(model, audit=1e-9, audits=tmp_path)
    with pytest.raises(EdgeSettingsError, match="give server="):
        connect(None, audit=0.1, audits=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(EdgeSettingsError, match="cannot make the folder"):
        connect(model, audit=0.1, audits=tmp_path / "file")


def test_a_limiter_of_the_user_with_a_least_score_permits_audits(bundle, model, tmp_path):
    limiter = Limiter(RateLimit(5, per="1h"), min_score=0.0)
    with EdgeClient(bundle, model, deadline=20.0, costs=NONE, limit=limiter, audit=1.0, audits=tmp_path) as edge:
        reasons = edge.predict(X_TEST[:20]).reason.tolist()
        assert reasons.count("audit") == 5
        assert edge.stats().audit["unanswered"] == {"over_limit": 15}
        assert edge.stats().limit["permits"] == 5


def test_calls_at_every_price_are_audited_at_theirs(connect, model, tmp_path):
    edge = connect(model, deadline=20.0, costs=NONE, audit=1.0, audits=tmp_path)
    edge.predict(X_TEST[:3])
    edge.predict(X_TEST[:3], costs=ALL)
    pairs = read_audits(tmp_path)
    assert sorted(map(tuple, pairs.costs.tolist())) == [(0.0, 1.0, 0.0, 0.0)] * 3 + [(0.0, 1.0, 5.0, 6.0)] * 3
