"""Links of Algorithm 2: when a copy of the server reaches the rejector, and that nothing else changes with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import l2h
from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.cli.app import run
from l2h.decision import RejectorSpec
from l2h.errors import SettingsError
from l2h.training.links import OnOff, Periodic, Trace, parse_link

COSTS = Costs(c_e=0.1, c_1=1.25)
EPOCHS = 3


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 500) | st.none())
def test_an_interval_is_the_papers_count(steps: int, steps_an_epoch: int, interval: int | None) -> None:
    """Sync at t = 1, 1 + S, 1 + 2S, ..., where t counts from 1 and S may be an epoch."""
    up, t = set(), 1
    while t <= steps:
        up.add(t)
        t += steps_an_epoch if interval is None else interval
    found = Periodic(interval).schedule(steps, steps_an_epoch)
    assert {t + 1 for t in np.flatnonzero(found)} == up
    assert found.shape == (steps,)


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=8).map(
    lambda gaps: tuple(
        (start, start + length)
        for start, length in zip(
            np.cumsum([gap for gap, _ in gaps]) + np.cumsum([0, *(length for _, length in gaps[:-1])]),
            [length for _, length in gaps],
            strict=True,
        )
    )
)


@given(spans, st.integers(1, 300))
def test_a_trace_is_up_inside_its_spans_and_at_the_first_step(spans: tuple[tuple[int, int], ...], steps: int) -> None:
    found = Trace(spans).schedule(steps, 10)
    expected = [step == 0 or any(up <= step < down for up, down in spans) for step in range(steps)]
    assert found.tolist() == expected


@given(spans)
def test_a_trace_comes_from_its_csv(
    tmp_path_factory: pytest.TempPathFactory, spans: tuple[tuple[int, int], ...]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("down,note,up\n" + "".join(f"{down},x,{up}\n" for up, down in spans))
    assert parse_link(f"trace:{path}") == Trace(tuple((int(up), int(down)) for up, down in spans))


@given(st.floats(1, 50), st.floats(1, 50), st.integers(0, 1000), st.integers(1, 400))
def test_a_random_link_counts_its_drawn_times_down(mean_up: float, mean_down: float, seed: int, steps: int) -> None:
    """The same draws, spent one step at a time; so a longer training begins as a shorter one does."""
    rng = np.random.default_rng(seed)
    state, left, expected = False, 0, []
    for _ in range(steps):
        if left == 0:
            state = not state
            left = int(rng.geometric(1 / (mean_up if state else mean_down)))
        left -= 1
        expected.append(state)
    link = OnOff(mean_up, mean_down, seed)
    assert link.schedule(steps, 10).tolist() == expected
    assert link.schedule(2 * steps, 10)[:steps].tolist() == expected


@pytest.mark.parametrize(("mean_up", "mean_down"), [(1, 1), (1, 9), (20, 60), (50, 5), (300, 300)])
def test_a_random_link_is_up_for_its_share_of_the_time(mean_up: float, mean_down: float) -> None:
    """Within four standard errors, for each of five seeds.

    A two-state Markov chain that leaves its states with 1/mean_up and 1/mean_down has the correlation
    rho = 1 - 1/mean_up - 1/mean_down from step to step, and the mean of n steps the variance
    p (1 - p) (1 + rho) / (1 - rho) / n. Beginning up shifts it by less than 1 / (1 - rho) / n. Where both means are 1
    it alternates, and an odd n would count one more.
    """
    n = 200_000
    share, rho = mean_up / (mean_up + mean_down), 1 - 1 / mean_up - 1 / mean_down
    error = 4 * math.sqrt(share * (1 - share) * (1 + rho) / (1 - rho) / n) + 1 / (1 - rho) / n
    means = [OnOff(mean_up, mean_down, seed).schedule(n, 100).mean() for seed in range(5)]
    assert all(abs(mean - share) <= error for mean in means), (means, share, error)
    assert rho == -1 or len(set(means)) == 5, "seeds differ"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Periodic(1)),
        (1, Periodic(1)),
        ("100", Periodic(100)),
        ("epoch", Periodic(None)),
        ("onoff:5:7.5", OnOff(5, 7.5, 3)),
    ],
)
def test_short_forms(text: int | str, expected: Any) -> None:
    assert parse_link(text, seed=3) == expected


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "1.5", "", "weekly", "²", "trace:", "onoff", "onoff:5", "onoff:5:5:5", "onoff:0.5:5", "onoff:5:0",
     "onoff:nan:5", "onoff:inf:5", "onoff:5:inf", "onoff:a:b"],
)  # fmt: skip
def test_a_link_that_is_none_is_told_with_what_there_is(text: str) -> None:
    with pytest.raises(SettingsError, match=r"sync=.*number of steps.*'epoch'.*'trace:FILE.csv'.*'onoff:UP:DOWN'"):
        parse_link(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "names no span"),
        (b"up,down\n", "names no span"),
        (b"up\n3\n", "line 2 .*expected the columns up,down"),
        (b"start,end\n0,5\n", "line 2 .*expected the columns up,down"),
        (b"up,down\n0,5\n7,x\n", "line 3 .*whole numbers of steps"),
        (b"up,down\n0,5\n7\n", "line 3 .*whole numbers of steps"),
        (b"up,down\n0.5,2\n", "line 2 .*whole numbers of steps"),
        (b"up,down\n5,5\n", "line 2 .*5,5 is empty or not after"),
        (b"up,down\n5,3\n", "line 2 .*5,3 is empty or not after"),
        (b"up,down\n-3,3\n", "line 2 .*-3,3 is empty or not after"),
        (b"up,down\n0,10\n5,20\n", "line 3 .*5,20 is empty or not after"),
        (b"\x89PNG\r\n\xff\xfe", "is not a CSV file"),
    ],
)
def test_a_bad_trace_is_told_by_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as told:
        parse_link(f"trace:{path}")
    assert str(path) in str(told.value)


def test_a_trace_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the trace .*none.csv: No such file"):
        parse_link(f"trace:{tmp_path / 'none.csv'}")
    with pytest.raises(SettingsError, match="cannot read the trace"):
        parse_link(f"trace:{tmp_path}")


# Through the system and the commands.


def clouds(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(0).normal(size=(3, 4)) * 1.5
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return (centres[y] + rng.normal(size=(n, 4))).astype(np.float32), y


def weak(X: np.ndarray) -> np.ndarray:
    return X @ np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)


def fitted(**how: Any) -> HelpSystem:
    stage = StageSettings(epochs=EPOCHS, batch=16, optimizer="sgd", lr=0.05, schedule="constant", patience=None)
    settings = Settings(recipe="paper", loss="shifted", device="cpu", seed=4, server=stage, rejector=stage)
    return HelpSystem(weak, "mlp", settings=settings).fit(*clouds(200, 1), **how)


def same(one: HelpSystem, two: HelpSystem) -> bool:
    """Rejectors, bit for bit; the servers must be anyway."""
    server, again = one.fitted.servers[0].network.state_dict(), two.fitted.servers[0].network.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in server.items())
    return all(
        torch.equal(t, two.fitted.rejectors.state_dict()[name]) for name, t in one.fitted.rejectors.state_dict().items()
    )


def test_a_sync_at_every_step_is_the_run_that_pays_per_request_bit_for_bit(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("up,down\n0,20\n20,1000\n")
    paid = fitted(costs=COSTS)
    for sync in (1, "1", f"trace:{trace}"):
        linked = fitted(specs=[RejectorSpec("shifted", COSTS, sync=sync)])
        assert same(paid, linked), sync
        untimed = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in s.fitted.history] for s in (paid, linked)
        ]
        assert untimed[0] == untimed[1]
    for sync in (2, "epoch", "onoff:3:9"):
        assert not same(paid, fitted(specs=[RejectorSpec("shifted", COSTS, sync=sync)])), f"{sync} makes no difference"


def test_rejectors_over_several_links_are_those_over_each(tmp_path: Path) -> None:
    """Beside each other as alone, to a few roundings of float32: batched products add up in another order."""
    links = (1, 7, "epoch", "onoff:3:9")
    together = fitted(specs=[RejectorSpec("shifted", COSTS, sync=sync) for sync in links])
    for i, sync in enumerate(links):
        alone = fitted(specs=[RejectorSpec("shifted", COSTS, sync=sync)])
        for name, tensor in alone.fitted.rejectors.state_dict().items():
            assert torch.allclose(together.fitted.rejectors.state_dict()[name][i], tensor[0], rtol=1e-4, atol=1e-5), (
                sync,
                name,
            )


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    X, y = clouds(300, 5)
    np.savez(tmp_path / "data.npz", X_train=X[:200], y_train=y[:200], X_test=X[200:], y_test=y[200:])
    return [
        "train", "--data", str(tmp_path / "data.npz"), "--client", "tree", "--server", "mlp", "--device", "cpu",
        "--set", f"server.epochs={EPOCHS}", "--out", str(tmp_path / "run"),
    ]  # fmt: skip


PAPER = ["--recipe", "paper", "--loss", "shifted"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sync", "2"], "--sync goes with --recipe paper"),
        (["--sync", "epoch"], "--sync goes with --recipe paper"),
        ([*PAPER, "--sync", "5", "--sync", "epoch", "--sync", "5"], "--sync names a link twice: 5, epoch, 5"),
        ([*PAPER, "--sync", "0"], "sync='0' is unknown"),
        ([*PAPER, "--sync", "trace:none.csv"], "cannot read the trace none.csv"),
    ],
)
def test_a_bad_link_is_told_before_anything_is_written(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert run([*command, *flags]) == 2
    said = capsys.readouterr()
    assert f"error: {words}" in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_a_run_over_a_trace_outlives_its_file(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("up,down\n0,4\n9,12\n")
    assert run([*command, *PAPER, "--sync", f"trace:{trace}", "--sync", "1", "--sync", "onoff:3:9"]) == 0
    trace.unlink()
    system = l2h.load(tmp_path / "run")
    assert [spec.sync for spec in system.specs] == [f"trace:{trace}", "1", "onoff:3:9"]
    assert (tmp_path / "run" / "plots" / "sync.png").exists()
    capsys.readouterr()
    assert run(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert f"trace:{trace}" in capsys.readouterr().out
    assert run(["calibrate", str(tmp_path / "run"), "--limit", "20%"]) == 0
