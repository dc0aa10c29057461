"""The description of the server is exact: a tool that knows nothing else finds no answer that it does not announce."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from serving_process import Server, make_key
from waiting import STUCK


@pytest.mark.long
@pytest.mark.parametrize("keys", [False, True])
def test_schemathesis_finds_nothing(bundle, tmp_path, keys):
    path, _, key = make_key(tmp_path, admin=True)
    tool = Path(sys.executable).with_name("schemathesis")
    with Server(bundle, tmp_path, keys=str(path) if keys else None, workers=2) as server:
        command = [
            *(str(tool), "run", f"{server.url}/openapi.json", "--max-examples", "8", "--seed", "1"),
            # That `data` is as long as `shape` says cannot be said in a schema: such requests are refused with 400.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            *(("--header", f"Authorization: Bearer {key}") if keys else ()),
        ]
        before = server.memory()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=STUCK)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        assert "Tested: 14" in done.stdout
        assert not server.events("worker_died")
        assert server.memory() - before < 64
        assert server.get("/v2/health/ready")[0] == 200


def test_it_says_what_this_model_takes(server):
    found = json.loads(server.get("/openapi.json")[1])
    assert found["openapi"] == "3.1.0"
    shape = found["components"]["schemas"]["Request"]["properties"]["inputs"]["items"]["properties"]["shape"]
    assert [one.get("const") for one in shape["prefixItems"]] == [None, 1, 4, 4]
    infer = found["paths"]["/v2/models/{name}/infer"]["post"]
    assert {"200", "400", "408", "413", "503"} <= set(infer["responses"])
    assert "Retry-After" in infer["responses"]["503"]["headers"]
