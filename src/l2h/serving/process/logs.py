"""Logs as JSON lines on stderr: what the server does, and a line for every request. Never a key or a payload."""

import io
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from l2h.telemetry import JsonLines, stamp

#: Bytes that one write to a pipe puts there in one piece, so that the lines of several processes do not mix.
_PIECE = 4096
#: Lines that wait for a slow reader of stderr; further ones are dropped and counted.
_WAITING = 10_000
#: Seconds between two writes, so that the lines of many requests wake the thread once.
_GATHER = 0.05
#: Seconds for the last lines before the process ends.
_LAST = 1.0


def log_event(level: str, event: str, /, **fields: Any) -> None:
    """Log what the server does: the name of the event, and its fields."""
    logging.getLogger("l2h.serving").log(getattr(logging, level.upper()), event, extra={"fields": fields})


class LogWriter(logging.Handler):
    """Writes lines to stderr in a thread of its own, so that a reader who is slow or takes nothing delays nobody.

    ``dropped`` counts the lines that were not written because too many waited.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines(lambda line: _dumps(line).decode()))
        self.dropped = 0
        self._told = 0  # of the dropped ones, how many a line has told of
        self._counting = threading.Lock()
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._closing = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Have a line written, or drop it; from any thread."""
        if self._lines.qsize() < _WAITING:
            self._lines.put(line)
        else:
            with self._counting:
                self.dropped += 1

    def put_request(self, fields: Mapping[str, Any]) -> None:
        """Have the line of a request written."""
        line = {"time": stamp(time.time()), "level": "info", "event": "request", "pid": self._pid, **fields}
        self.put(_dumps(line) + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        self.put(self.format(record).encode() + b"\n")

    def close(self) -> None:
        """Write what waits; a reader that takes nothing is not waited for."""
        if not self._closing.is_set():
            self._closing.set()
            self._lines.put(b"")  # wakes the thread
            self._thread.join(_LAST)
        super().close()

    def _run(self) -> None:
        while not (self._closing.is_set() and self._lines.empty()):
            piece = self._lines.get()
            self._closing.wait(_GATHER)
            while not self._lines.empty():
                line = self._lines.get()
                if len(piece) + len(line) > _PIECE:
                    self._write(piece)
                    piece = b""
                piece += line
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        lost = self.dropped - self._told
        try:
            if lost:
                line = {"time": stamp(time.time()), "level": "warning", "event": "log_lines_dropped", "pid": self._pid}
                os.write(2, _dumps({**line, "lines": lost}) + b"\n")
                self._told += lost
            os.write(2, piece)
        except OSError:  # nobody reads stderr any more
            with self._counting:
                self.dropped += piece.count(b"\n")


class PrintedLines(io.TextIOBase):
    """Stands for stdout where a function is the model: logs what it prints, so that nobody has to read it."""

    def __init__(self) -> None:
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-_PIECE:]
        for line in lines:
            log_event("info", "printed", text=line[:_PIECE])
        return len(text)


def log_as_json(level: str) -> LogWriter:
    """Send what ``l2h`` and uvicorn log to stderr, as JSON lines; the caller closes the writer at the end."""
    writer = LogWriter()
    quiet = ("uvicorn", "uvicorn.error", "asyncio", "opentelemetry")
    for name, least in (("l2h", logging.DEBUG), *((name, logging.ERROR) for name in quiet)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [writer]
        logger.propagate = False
        logger.setLevel(max(least, logging.getLevelName(level.upper())))
    return writer


def _dumps(line: Mapping[str, Any]) -> bytes:
    """Return a line as JSON, of whatever its values are."""
    import orjson  # here: the base install reads accounts too, and has it not

    try:
        return orjson.dumps(line, default=str)
    except (orjson.JSONEncodeError, UnicodeError):  # half of a character, or a number beyond 64 bits
        return json.dumps(line, default=str, separators=(",", ":")).encode()
