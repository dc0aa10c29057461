"""Writing audit files: one line at a time, in files of bounded size, of which the oldest are deleted."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import msgspec

from l2h.audits.lines import PREFIX, SUFFIX, AuditError, AuditHeader, AuditPair, LabelLine, decode, encode
from l2h.errors import SettingsError, shown
from l2h.files import open_regular
from l2h.telemetry import event

log = logging.getLogger("l2h.audits")
#: The most files that a folder keeps: a device that starts often leaves many small ones.
_FILES = 256


class AuditLog:
    """Appends pairs and labels to files of a folder; any number of threads may, and other processes beside it.

    Every process writes files of its own. Each line is handed to the system by one call, so that a process that is
    killed loses at most the line that it was writing.

    Args:
        folder: where the files are kept; made if it is missing.
        largest: bytes of a file, after which another is begun.
        most: bytes of all audit files of the folder, after which the oldest are deleted.
        seed: of the draws of the edge client, for tests; leave it out in the field, or every start draws the same.

    Raises:
        SettingsError: a size out of its range.
        AuditError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        largest: int = 4 * 2**20,
        most: int = 64 * 2**20,
        seed: int | None = None,
    ) -> None:
        if not 1024 <= largest <= most // 2:
            raise SettingsError(f"largest={largest}, most={most}: a file takes 1024 bytes or more, and two must fit")
        self.folder, self.seed = Path(folder), seed
        self._largest, self._most = largest, most
        self._lock = threading.Lock()
        self._header: AuditHeader | None = None
        self._file: int | None = None
        self._headed = False  # whether what follows in the file is below this header
        self._size = 0
        #: The ids of pairs: those in the files when a label came first, and those written since. Reading takes a while,
        #: for which only labels wait.
        self._known: set[str] | None = None
        self._later: set[str] | None = None
        self._reading = threading.Lock()
        self._failed = False
        self.pairs = self.labels = self.lost = 0  # lines that were written, and those that could not be
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AuditError(f"cannot make the folder {folder} for audits: {error.strerror or error}") from error

    def begin(self, header: AuditHeader) -> None:
        """Write what follows below this header."""
        with self._lock:
            self._begin(header)

    def write(self, pairs: list[AuditPair], header: AuditHeader | None = None) -> None:
        """Append pairs below a header, None for the last one.

        Where the disk refuses, warn once and count them as lost: the answers go out all the same.
        """
        with self._lock:
            if header is not None:
                self._begin(header)
            for pair in pairs:
                try:
                    self._append(pair)
                except OSError as error:
                    self.lost += 1
                    self._warn(error)
                    continue
                self.pairs += 1
                self._failed = False
                if self._later is not None:
                    self._later.add(pair.id)

    def feedback(self, id: str, label: int, header: AuditHeader | None = None) -> None:
        """Append the true class of a pair, which may be of an earlier start; a second label replaces the first.

        The number is one of the classes of ``header``, None for the last one.

        Raises:
            AuditError: no pair of the folder has this id, or the label cannot be written.
        """
        if not self._knows(id):
            raise AuditError(
                f"no pair in {self.folder} has the id {shown(id)}: it was never given out here, or its file was "
                "the oldest and has been deleted"
            )
        with self._lock:
            if header is not None:
                self._begin(header)
            try:
                self._append(LabelLine(id=id, label=label, time=time.time()))
            except OSError as error:
                raise AuditError(f"cannot write the label to {self.folder}: {error.strerror or error}") from error
            self.labels += 1

    def close(self) -> None:
        """Close the file; a later line begins another."""
        with self._lock:
            self._end_file()

    def _begin(self, header: AuditHeader) -> None:
        if header is not self._header and header != self._header:
            self._header, self._headed = header, False

    def _append(self, line: AuditPair | LabelLine) -> None:
        data = encode(line) + b"\n"
        above = b"" if self._headed else self._header_line()
        if self._file is not None and self._size + len(above + data) > self._largest:
            self._end_file()
        if self._file is not None and not os.fstat(self._file).st_nlink:  # deleted, such as by another process
            self._end_file()
            self._forget_ids()
        if self._file is None:
            self._begin_file()
            above = b""
        assert self._file is not None
        try:
            _write_whole(self._file, above + data)
        except OSError:  # what follows is no part of a line that is cut off
            self._end_file()
            raise
        self._headed = True
        self._size += len(above + data)

    def _header_line(self) -> bytes:
        assert self._header is not None, "begin() comes first"
        return encode(msgspec.structs.replace(self._header, time=time.time())) + b"\n"

    def _begin_file(self) -> None:
        stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%S%f")
        path = self.folder / f"{PREFIX}{stamp}-{token_hex(4)}{SUFFIX}"
        data = self._header_line()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prune(len(data))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try:
            _write_whole(descriptor, data)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._file, self._size = descriptor, len(data)

    def _end_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._headed = None, False

    def _prune(self, header: int) -> None:
        """Delete the oldest files, so that a further one of full size has room."""
        files = []
        for path in audit_files(self.folder):
            with suppress(FileNotFoundError):  # another process has just deleted it
                files.append((path, path.stat().st_size))
        total = sum(size for _, size in files) + max(self._largest, header)
        while files and (total > self._most or len(files) >= _FILES):
            path, size = files.pop(0)
            path.unlink(missing_ok=True)
            total -= size
            self._forget_ids()

    def _forget_ids(self) -> None:
        self._known = self._later = None

    def _knows(self, id: str) -> bool:
        with self._reading:
            with self._lock:
                known, later = self._known, self._later
                if known is None:
                    self._later = set()
            if known is None:
                known = self._read_ids()
                with self._lock:
                    if self._later is not None:  # else files were deleted meanwhile, and the next label reads again
                        self._known = known
            return id in known or (later is not None and id in later)

    def _read_ids(self) -> set[str]:
        known = set()
        for path in audit_files(self.folder):
            with suppress(OSError), open_regular(path) as file:
                for line in file:
                    with suppress(ValueError):
                        found = decode(line)
                        if isinstance(found, AuditPair):
                            known.add(found.id)
        return known

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            why = error.strerror or str(error)
            what = event("audit_pairs_lost", folder=str(self.folder), error=why)
            log.warning("pairs are lost, since %s cannot be written: %s", self.folder, why, extra=what)
        self._failed = True


def _write_whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def audit_files(folder: Path) -> list[Path]:
    """Return the audit files of a folder, the oldest first."""
    return sorted(folder.glob(f"{PREFIX}*{SUFFIX}"))
