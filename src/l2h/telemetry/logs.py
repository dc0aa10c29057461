"""The one style of JSON lines in all logs: ``time``, ``level``, ``event``, ``pid``, then what the event has to say."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


class JsonLines(logging.Formatter):
    """A record as one line of JSON.

    ``extra={"event": ..., "fields": {...}}`` of a record gives the event's name and the rest. Without a name the
    message is the event; with one it is the field ``message``. What other packages log has their name as the event.
    """

    def __init__(self, dumps: Callable[[Mapping[str, Any]], str] | None = None) -> None:
        super().__init__()
        self._dumps = dumps or _dumps

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": stamp(record.created), "level": record.levelname.lower()}
        whose, message = record.name.partition(".")[0], record.getMessage()
        event = getattr(record, "event", None if whose == "l2h" else whose)
        line |= {"event": message if event is None else event, "pid": record.process}
        line |= getattr(record, "fields", {})
        if event is not None:
            line["message"] = message
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return self._dumps(line)


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log record: the name of what happened, and its fields."""
    return {"event": name, "fields": fields}


def log_as_json(level: str = "info") -> None:
    """Write what L2H logs in this process to stderr, as JSON lines in the style of ``l2h serve``.

    Args:
        level: the least level that is written: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("l2h", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())


def stamp(seconds: float) -> str:
    """Return a time as text, in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _dumps(line: Mapping[str, Any]) -> str:
    return json.dumps(line, default=str, separators=(",", ":"))
