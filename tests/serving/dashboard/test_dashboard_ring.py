"""The file that the numbers are kept in."""

from __future__ import annotations

import numpy as np
import pytest

from l2h.serving.dashboard.ring import EVENTS, SPANS, RingWriter, read_events, read_slots
from l2h.serving.errors import LedgerError

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db-dashboard"


def test_every_span_holds_what_happened_in_it(path):
    rng = np.random.default_rng(0)
    ring, happened = RingWriter(path), []
    now = NOW
    for i in range(1500):
        now += float(rng.uniform(0.2, 120))
        sums, queue = {"inputs": int(rng.integers(1, 100))}, int(rng.integers(0, 9))
        happened.append((now, sums["inputs"], queue))
        ring.add(now, sums, {"queue": queue})
        if i % 400 == 399:  # it goes on where it was
            ring.close()
            ring = RingWriter(path)
    for span in SPANS.values():
        slots = read_slots(path, span, now)
        assert len(slots) == span.count
        for slot in slots:
            inside = [(n, queue) for when, n, queue in happened if slot.start <= when < slot.start + span.step]
            assert slot.sums.get("inputs", 0) == sum(n for n, _ in inside)
            assert slot.most.get("queue") == max((queue for _, queue in inside), default=None)
            assert slot.least.get("queue") == min((queue for _, queue in inside), default=None)
    ring.close()


def test_the_file_does_not_grow_and_the_newest_events_stay(path):
    ring = RingWriter(path)
    size = path.stat().st_size
    for i in range(3 * EVENTS):
        ring.add(NOW + 7 * i, {f"refused:{j}": 10**12 for j in range(40)}, {"queue": 10**9})
        ring.note({"event": "bundle_refused", "error": "\u0000\U0001f600" * 5000, "i": i})
    assert path.stat().st_size == size
    assert path.stat().st_mode & 0o777 == 0o600
    assert [event["i"] for event in read_events(path)] == list(range(3 * EVENTS - 1, 2 * EVENTS - 1, -1))
    ring.close()
    ring = RingWriter(path)
    ring.note({"event": "started", "i": -1})
    assert read_events(path)[0]["i"] == -1
    ring.close()


def test_what_is_damaged_is_left_out(path):
    ring = RingWriter(path)
    for i in range(10):
        ring.add(NOW + i, {"inputs": 1}, {})
    ring.close()
    content = bytearray(path.read_bytes())
    content[content.index(b'{"t":1800000003') + 9] = 0
    path.write_bytes(content)
    assert [slot.sums.get("inputs", 0) for slot in read_slots(path, SPANS["minute"], NOW + 9)][-10:].count(0) == 1
    path.write_bytes(content[: len(content) // 2])  # cut: it begins again
    RingWriter(path).close()
    assert not any(slot.sums for slot in read_slots(path, SPANS["minute"], NOW + 9))
    path.unlink()
    assert read_events(path) == []


def test_a_file_of_others_and_one_in_use_are_refused(path, tmp_path):
    path.write_text("my diary")
    with pytest.raises(LedgerError, match="not written by L2H"):
        RingWriter(path)
    assert path.read_text() == "my diary"
    ring = RingWriter(tmp_path / "other")
    with pytest.raises(LedgerError, match="another server"):
        RingWriter(tmp_path / "other")
    ring.close()
    RingWriter(tmp_path / "other").close()
