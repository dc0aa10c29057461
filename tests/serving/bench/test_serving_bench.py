"""``l2h bench serve``: what it measures is what happened."""

from __future__ import annotations

import json
import re

import pytest
from serving_process import Server, make_key

from l2h.cli.app import run


@pytest.mark.long
def test_a_bundle_is_measured_beside_its_model_alone(bundle, capsys):
    assert run(["bench", "serve", str(bundle), "--seconds", "0.5", "--connections", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["results"]) == {"JSON", "binary"}
    for row in found["results"].values():
        assert set(row["statuses"]) == {"200"}
        assert row["requests_per_second"] == row["inputs_per_second"] > 0
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
    assert found["model_alone"]["inputs_per_second"] > 0


@pytest.mark.long
def test_a_running_server_is_charged_for_what_is_counted(bundle, tmp_path, capsys):
    path, _, key = make_key(tmp_path)
    (tmp_path / "key").write_text(key)
    (tmp_path / "key").chmod(0o600)
    with Server(bundle, tmp_path, keys=str(path)) as server:
        asked = ["bench", "serve", server.url, "--seconds", "0.5", "--connections", "3", "--inputs", "2", "--json"]
        assert run([*asked, "--key-file", str(tmp_path / "key")]) == 0
        rows = json.loads(capsys.readouterr().out)["results"].values()
        answered = sum(row["statuses"]["200"] for row in rows)
        charged = [inputs for (inputs,) in server.rows("inputs")]
        assert set(charged) == {2}
        assert 0 < answered <= len(charged), "the warm-up is charged and not counted"
        assert run(asked) == 1, "no key, no figures"
        assert "it wants a key" in capsys.readouterr().err


def test_for_a_person_it_is_a_table_with_the_cost_of_a_million_requests(bundle, capsys):
    asked = ["bench", "serve", str(bundle), "--seconds", "0.3", "--connections", "2", "--hour-cost", "0.72"]
    assert run([*asked, "--use", "0"]) == 2
    assert "--use 0" in capsys.readouterr().err
    assert run([*asked, "--use", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "requests/s" in out
    assert "The model alone" in out
    rates = re.findall(r"(?:JSON|binary) +│ +(\d+)", out)
    costs = re.findall(r"([\d.]+) \((?:JSON|binary)\)", out)
    # A second costs 0.0002, and only a fifth of the requests that it could answer come.
    assert len(rates) == len(costs) == 2
    assert [float(cost) for cost in costs] == pytest.approx([1000 / float(rate) for rate in rates], rel=0.01)


@pytest.mark.parametrize("target", ["http://127.0.0.1:9", "nowhere"])
def test_what_cannot_be_measured_is_told_in_a_line(target, capsys):
    assert run(["bench", "serve", target, "--seconds", "0.2"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert target.removeprefix("http://") in err


@pytest.mark.long
def test_a_server_with_a_certificate_of_its_own(bundle, tmp_path, certificate, capsys):
    cert, key = certificate
    with Server(bundle, tmp_path, tls_cert=str(cert), tls_key=str(key)) as server:
        asked = ["bench", "serve", server.url, "--seconds", "0.3", "--connections", "2", "--json"]
        assert run([*asked, "--ca-file", str(cert)]) == 0
        assert json.loads(capsys.readouterr().out)["results"]["binary"]["statuses"].keys() == {"200"}
        assert run(asked) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert run([*asked, "--ca-file", str(tmp_path / "none")]) == 2
