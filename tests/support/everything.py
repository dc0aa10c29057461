"""All that a server and a device can have on: keys, dashboard, traces, metrics, audits, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collector import CollectorProcess

from l2h.serving.accounts import open_keys


class Everything:
    """The settings of a server and the options of devices; ``admin`` and ``key`` are keys, ``audits`` is a folder."""

    def __init__(self, folder: Path) -> None:
        keys = open_keys(folder / "keys.json")
        self.admin, self.key = keys.add("admin", admin=True)[1], keys.add("devices")[1]
        self.collector, self.audits = CollectorProcess(), folder / "audits"
        self.settings: dict[str, Any] = {
            "keys": str(folder / "keys.json"),
            "dashboard": True,
            "otlp": self.collector.address,
        }

    @property
    def flags(self) -> list[str]:
        """The settings as flags of ``l2h serve``."""
        return ["--keys", self.settings["keys"], "--dashboard", "--otlp", self.settings["otlp"]]

    def options(self, device: str, **more: Any) -> dict[str, Any]:
        """The options of an edge client."""
        watched = {"otlp": self.collector.address, "audit": 0.01, "audits": self.audits}
        watched |= {"report": True, "device": device}
        return {"key": self.key, **watched, **more}
