"""The dashboard of deploy/ and the pages of docs/ name the metrics that a server and a device really export."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving_process import Client, Server

from l2h import Costs, EdgeClient
from l2h.serving.accounts import open_keys

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@pytest.fixture(scope="module")
def exported(bundle: Path, inputs: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every number that a server and a device export, by its name, after all kinds of requests."""
    folder = tmp_path_factory.mktemp("server")
    keys = open_keys(folder / "keys.json")
    admin, key = keys.add("admin", admin=True)[1], keys.add("device")[1]
    ask = {"costs": Costs(c_e=0, c_1=0), "limit": "100/1h", "deadline": 5.0}
    with Server(bundle, folder, keys=str(folder / "keys.json")) as server:
        assert Client(server, key).post(b"{").status == 400
        with EdgeClient(bundle, server.url, key=key, **ask) as edge:
            edge.predict(inputs)
            texts = [server.get("/metrics", Authorization=f"Bearer {admin}")[1].decode(), edge.metrics_text()]
        audit = {"costs": Costs(c_e=1.0), "audit": 0.5, "audits": folder / "audits"}
        with EdgeClient(bundle, server.url, **audit) as edge:  # without a key
            edge.predict(inputs)
            texts.append(edge.metrics_text())
        with EdgeClient(bundle, server.url, **ask) as edge:
            edge.predict(inputs)
            texts.append(edge.metrics_text())
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    return found


def test_every_metric_of_the_dashboard_is_exported_with_its_labels(exported: dict[str, set[str]]) -> None:
    assert len(EXPRESSIONS) > 30
    for expression in EXPRESSIONS:
        names = set(re.findall(r"\bl2h_\w+", expression))
        assert names <= set(exported), expression
        grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
        chosen = {label for by in re.findall(r"{([^}]*)}", expression) for label in re.findall(r"(\w+)[=!]", by)}
        for name in names:
            assert grouped | chosen <= exported[name], expression
    for variable in DASHBOARD["templating"]["list"]:
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", str(variable["query"])):
            assert label in exported[name]


def test_every_metric_that_is_exported_is_documented(exported: dict[str, set[str]]) -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("serving.md", "monitoring.md"))
    for name in exported:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert family in pages, f"{family} is not documented"


def test_the_dashboard_can_be_laid_out() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
