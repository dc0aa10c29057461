"""The metrics of single keys: exact, bounded in number, and the same whichever worker counts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from serving_process import Client, Server
from waiting import until

from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Rate


def use_of(server: Server, admin: str, name: str) -> dict[str, float]:
    """A metric of keys, by their names."""
    text = server.get("/metrics", Authorization=f"Bearer {admin}")[1].decode()
    found = re.findall(rf'^{name}{{key="[^"]+",key_name="([^"]+)"}} (\S+)$', text, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return {key: float(value) for key, value in found}


@pytest.mark.long
def test_so_many_keys_are_counted_by_themselves_and_the_rest_together(
    bundle: Path, tmp_path: Path, x: np.ndarray
) -> None:
    keys = open_keys(tmp_path / "keys.json")
    admin = keys.add("admin", admin=True)[1]
    names = [f"key-{i}" for i in range(6)]
    texts = {name: keys.add(name)[1] for name in names}
    settings = {"keys": str(tmp_path / "keys.json"), "metric_keys": 3, "price": 2}

    def ask(server: Server, name: str, times: int) -> None:
        for _ in range(times):  # each by a connection of its own, which the kernel gives to either worker
            client = Client(server, texts[name])
            assert client.ask(x).status == 200
            client.close()

    with Server(bundle, tmp_path, **settings) as server:
        for i, name in enumerate(names):
            ask(server, name, i + 1)
        assert server.stop() == 0
    with Server(bundle, tmp_path, workers=2, **settings) as server:
        for name in names:
            ask(server, name, 4)
        # After a restart those are counted by themselves that had used most.
        own = dict.fromkeys(("key-3", "key-4", "key-5"), 12.0)
        wanted = {**own, "other": 36.0}
        until(lambda: use_of(server, admin, "l2h_key_inputs_total") == wanted)
        assert use_of(server, admin, "l2h_key_units_total") == {key: 2 * n for key, n in wanted.items()}
        assert sum(wanted.values()) == server.metric("l2h_inputs_total", Authorization=f"Bearer {admin}")


def test_refusals_are_counted_for_the_key_that_was_refused(bundle: Path, tmp_path: Path, x: np.ndarray) -> None:
    keys = open_keys(tmp_path / "keys.json")
    admin = keys.add("admin", admin=True)[1]
    slow = keys.add("slow", rate=Rate(0.001, 3))
    with Server(bundle, tmp_path, keys=str(tmp_path / "keys.json")) as server:
        client = Client(server, slow[1])
        assert [client.ask(x).status for _ in range(3)] == [200, 429, 429]
        assert Client(server, "l2h_nobody").ask(x).status == 401
        label = f'{{key="{slow[0].id}",key_name="slow",status="429"}}'
        assert server.metric(f"l2h_key_requests_total{label}", Authorization=f"Bearer {admin}") == 2
        text = server.get("/metrics", Authorization=f"Bearer {admin}")[1].decode()
    assert 'status="401"' not in "".join(re.findall(r"l2h_key_requests_total.*", text))


def test_no_keys_are_counted_where_none_are_to_be(bundle: Path, tmp_path: Path, x: np.ndarray) -> None:
    with Server(bundle, tmp_path, metric_keys=0) as server:
        assert Client(server).ask(x).status == 200
        assert "l2h_key_inputs_total{" not in server.get("/metrics")[1].decode()
