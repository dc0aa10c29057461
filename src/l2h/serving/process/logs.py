"""Logs as JSON lines on stderr: what the server does, and a line for every request. Never a key or a payload."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import orjson

#: Bytes that one write to a pipe puts there in one piece, so that the lines of several workers do not mix.
_PIECE = 4096
#: Bytes of lines that wait for a slow reader of stderr; further ones are dropped and counted.
_BACKLOG = 4 * 2**20


def log_event(level: str, event: str, /, **fields: Any) -> None:
    """Log what the server does: the name of the event, and its fields."""
    logging.getLogger("l2h.serving").log(getattr(logging, level.upper()), event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """A record as one line of JSON: the message is the event, ``extra={"fields": {...}}`` the rest."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": record.process,
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(level: str) -> None:
    """Send what ``l2h`` and uvicorn log to stderr, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    quiet = ("uvicorn", "uvicorn.error", "asyncio")
    for name, least in (("l2h", logging.DEBUG), *((name, logging.ERROR) for name in quiet)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(max(least, logging.getLevelName(level.upper())))


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RequestLog:
    """Lines of requests, gathered in the event loop and written by a thread, so that a slow reader delays nobody."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._lines: list[bytes] = []
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._size = 0  # of the lines not yet written
        self._dropped = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        if on:
            self._thread.start()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Note a request; on the event loop."""
        if self._size > _BACKLOG:
            self._dropped += 1
            return
        line = {"time": _stamp(time.time()), "level": "info", "event": "request", "pid": self._pid, **fields}
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        self._size += len(data)
        self._lines.append(data)

    def flush(self) -> None:
        """Hand what was gathered to the thread."""
        if self._dropped:
            fields = {"level": "warning", "event": "log_lines_dropped", "pid": self._pid, "lines": self._dropped}
            self._lines.append(json.dumps(fields).encode() + b"\n")
            self._dropped = 0
        if self._lines:
            self._queue.put(self._lines)
            self._lines = []

    def close(self) -> None:
        """Write what is left; a reader that takes nothing is not waited for."""
        if self.on:
            self.flush()
            self._queue.put(None)
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (lines := self._queue.get()) is not None:
            piece = bytearray()
            for line in lines:
                if piece and len(piece) + len(line) > _PIECE:
                    self._write(piece)
                    piece = bytearray()
                piece += line
            self._write(piece)

    def _write(self, piece: bytearray) -> None:
        with suppress(OSError):  # nobody reads stderr any more
            os.write(2, piece)
        self._size -= len(piece)
