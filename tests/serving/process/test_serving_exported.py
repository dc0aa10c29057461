"""From a trained system to answers over HTTP: the server says what the system's own server says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from serving_process import Client, Server, make_key

import l2h
from l2h.bundle import ServerBundle
from l2h.cli.app import run
from l2h.edge import EdgeError
from l2h.errors import CostError
from l2h.serving.accounts.key import Quota, Rate


@pytest.fixture(scope="module")
def exported(bundles):
    return bundles("fused")


def test_an_exported_system_is_served(exported, tmp_path):
    test = l2h.load_dataset("digits", seed=0).X_test[:64]
    wanted = ServerBundle(exported).run(test)
    with Server(exported, tmp_path / "s") as server:
        for binary in (True, False):
            reply = Client(server).ask(test, binary=binary)
            assert reply.status == 200, reply.body
            np.testing.assert_allclose(reply.scores, wanted, rtol=1e-4, atol=1e-4)
        assert server.rows("model, inputs") == [("digits", 64)] * 2


def test_a_device_sees_whether_its_key_is_taken_and_pays_nothing_for_it(exported, tmp_path):
    path, _, key = make_key(tmp_path)
    with Server(exported, tmp_path, keys=str(path)) as server:
        with l2h.EdgeClient(exported, server=server.url, key=key) as edge:
            edge.check()
            assert edge.classes_compared
            assert edge.server_versions == [edge.bundle.manifest.version]
        for wrong in (None, key[:-3] + "abc"):
            with (
                l2h.EdgeClient(exported, server=server.url, key=wrong) as edge,
                pytest.raises(EdgeError, match=r"wants a key|does not take the key"),
            ):
                edge.check()
        assert server.rows() == []


def test_a_device_tells_its_keys_quota_and_rate_from_a_busy_server(exported, tmp_path):
    path, _, quota = make_key(tmp_path, "quota", quota=Quota.parse("2/week"))
    _, _, rate = make_key(tmp_path, "rate", rate=Rate.parse("1/minute", burst=2))
    inputs = l2h.load_dataset("digits", seed=0).X_test[:3]
    with Server(exported, tmp_path, keys=str(path)) as server:
        for key, reason in ((quota, "key_quota"), (rate, "key_rate")):
            with l2h.EdgeClient(exported, server.url, key=key, costs=l2h.Costs(0.0, 0.0), deadline=5.0) as edge:
                answers = [edge.predict(x)[0] for x in inputs]
                assert [answer.reason for answer in answers] == ["worth_asking", "worth_asking", reason]
                assert edge.stats().servers["server"].faults == {reason: 1}
                assert edge.stats().charged == 2
        assert server.rows("count(*)") == [(4,)]


@pytest.mark.parametrize("costs", [0.1, {"c_e": 0.1}])
def test_prices_that_are_none_are_told(exported, costs):
    with l2h.EdgeClient(exported) as edge:
        with pytest.raises(CostError, match=r"l2h\.Costs"):
            edge.costs = costs
        with pytest.raises(CostError, match=r"l2h\.Costs"):
            edge.predict(np.zeros((1, *edge.bundle.input_shape), edge.bundle.input_dtype), costs=costs)


def test_bench_edge_times_both_ways(exported, tmp_path, certificate, capsys):
    cert, key = certificate
    asked = ["bench", "edge", str(exported), "--data", "digits", "--repeats", "50", "--json"]
    assert run(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["repeats"], found["remote_ms"]) == (50, None)
    assert found["ratio_p50"] == pytest.approx(found["local_ms"]["p50"] / found["model_ms"]["p50"], abs=1e-3)
    with Server(exported, tmp_path, tls_cert=str(cert), tls_key=str(key)) as server:
        assert run([*asked, "--server", server.url, "--ca-file", str(cert)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["remote_answered"] == 50
        assert found["remote_ms"]["p50"] > found["model_ms"]["p50"]
        assert len(server.rows()) == 70, "the warm-up is charged too"
        assert run([*asked, "--server", server.url]) == 1
        assert "certificate" in capsys.readouterr().err.lower()
