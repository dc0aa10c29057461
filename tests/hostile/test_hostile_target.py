"""The attacker itself: whom it attacks, and that the server is well after all."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hostile_target import loopback


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://10.0.0.1:8080", "https://127.0.0.1:1", "127.0.0.1:80"])
def test_only_a_server_on_this_machine_is_attacked(url):
    with pytest.raises(ValueError):
        loopback(url)
    command = [sys.executable, "-m", "tests.hostile", "--target", url]
    refused = subprocess.run(command, capture_output=True, check=False)
    assert refused.returncode == 2


def test_a_good_request_is_answered(target):
    assert target.ask().status == 200
    assert target.get("/v2/health/ready")[0] == 200
