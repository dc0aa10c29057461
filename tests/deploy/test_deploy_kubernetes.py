"""The files for Kubernetes follow its schemas, agree with each other, and name what a server really has."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import numpy as np
import psycopg
import pytest
import yaml
from postgres_process import PASSWORD, Postgres
from serving_process import Client, Server
from waiting import free_port

from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Quota

DEPLOY = Path(__file__).parents[2] / "deploy"
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
KSERVE = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
POD = OBJECTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
#: Between the oldest that has every field and the newest whose schema is at hand.
VERSIONS = ("1.27", kubernetes_validate.latest_version())
#: What KServe adds to the fields of a pod, of which these are used.
KSERVE_FIELDS = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"}


def of_kserve() -> dict[str, Any]:
    """What the InferenceService asks for as a plain pod: its predictor has the fields of a pod, and its own."""
    spec = {name: value for name, value in KSERVE["spec"]["predictor"].items() if name not in KSERVE_FIELDS}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": KSERVE["metadata"], "spec": spec}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [*OBJECTS, "InferenceService"])
def test_every_object_follows_the_schema(kind: str, version: str) -> None:
    kubernetes_validate.validate(OBJECTS.get(kind) or of_kserve(), version, strict=True)


def fields(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all fields whose names Kubernetes gives, not us: labels, and what has none, are left out."""
    if not isinstance(value, dict | list):
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if name in ("labels", "matchLabels", "selector", "annotations", "requests", "limits"):
            continue
        if isinstance(value, dict) and path:
            yield (*path, name)
        yield from fields(inner, (*path, name))


def test_the_check_sees_a_field_that_is_misspelt() -> None:
    count = 0
    for one in [*OBJECTS.values(), of_kserve()]:
        for *path, name in [*fields(one)][::6]:
            wrong = copy.deepcopy(one)
            place: Any = wrong
            for step in path:
                place = place[step]
            place[f"{name}x"] = place.pop(name)
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)
            count += 1
    assert count > 20


def test_the_objects_find_each_other() -> None:
    labels = POD["metadata"]["labels"]
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = OBJECTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": OBJECTS["Deployment"]["metadata"]["name"]}
    assert "replicas" not in OBJECTS["Deployment"]["spec"], "each `kubectl apply` would undo the autoscaler"
    (port,) = CONTAINER["ports"]
    used = [CONTAINER[name]["httpGet"]["port"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {*used, OBJECTS["Service"]["spec"]["ports"][0]["targetPort"]} == {port["name"]}
    assert str(port["containerPort"]) == CONTAINER["command"][CONTAINER["command"].index("--port") + 1]
    mounted = {one["name"] for one in CONTAINER["volumeMounts"]}
    assert mounted == {one["name"] for one in POD["spec"]["volumes"]}


def test_kserve_runs_the_same_container() -> None:
    (theirs,) = KSERVE["spec"]["predictor"]["containers"]
    assert theirs == {**CONTAINER, "name": "kserve-container"}
    ours = POD["spec"]
    for name in ("volumes", "securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert KSERVE["spec"]["predictor"][name] == ours[name]


def test_the_command_serves_with_the_password_of_the_secret(
    bundle: Path, x: np.ndarray, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (secret,) = CONTAINER["env"]
    monkeypatch.setenv(secret["name"], PASSWORD)
    url, port = postgres.new(), str(free_port())
    database = url.rsplit("/", 1)[1]
    _, key = open_keys(url).add("phones", quota=Quota.parse("10/week"))
    real = {"/bundle": str(bundle), "0.0.0.0": "127.0.0.1", "8080": port}
    real |= {"postgresql://l2h@postgres/l2h": f"postgresql://l2h@127.0.0.1:{postgres.port}/{database}"}
    command = [*CONTAINER["command"], *CONTAINER["args"]]
    assert real.keys() <= set(command)
    words = [real.get(word, word) for word in command[1:]]
    with Server(bundle, tmp_path, command=[sys.executable, "-m", "l2h", *words], cwd=tmp_path, accounts=url) as server:
        assert (server.port, len(server.workers)) == (int(port), 2)
        assert Client(server, key).ask(x).status == 200
        assert server.rows("inputs") == [(3,)]
        with psycopg.connect(url) as db:
            held = db.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
            most = db.execute("SHOW max_connections").fetchone()
        assert held is not None
        assert most is not None
        assert held[0] - 1 <= 3 * 2
        # All pods that the autoscaler and a roll-out may start find room, less what PostgreSQL keeps for itself.
        pods = OBJECTS["HorizontalPodAutoscaler"]["spec"]["maxReplicas"]
        pods += OBJECTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
        assert 3 * 2 * pods <= int(most[0]) - 3 - 12, "12 are for commands, dashboards and rows that are summed up"
        assert math.ceil(1.25 * KSERVE["spec"]["predictor"]["maxReplicas"]) <= pods, "a roll-out has a quarter more"


def test_a_server_has_the_probes_and_the_metric(server: Server) -> None:
    paths = {CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {httpx.get(server.url + path).status_code for path in paths} == {200}
    (metric,) = OBJECTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert re.search(rf"^{name} 0\.0$", httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
    (rule,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["seriesQuery"].startswith(f"{name}{{")
