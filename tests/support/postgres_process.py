"""A PostgreSQL server of our own: a process of a user without rights, in a folder that is removed at the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg
from waiting import free_port, until

PASSWORD = "s3cret/word"


def _program(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


POSTGRES, INITDB = _program("postgres"), _program("initdb")


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Postgres:
    """A server with a role ``l2h``, which has a password; ready when made. With ``fsync`` it is as safe as it comes."""

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = "on" if fsync else "off"
        # PostgreSQL does not run as root.
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
        self.folder = Path(tempfile.mkdtemp(prefix="l2h-postgres-"))
        os.chown(self.folder, self._user, -1)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        os.chown(password, self._user, -1)
        arguments = ["-U", "l2h", "-A", "scram-sha-256", "--pwfile", password, "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            [INITDB, "-D", self.folder / "data", *arguments], check=True, capture_output=True, **self._as_user()
        )
        self._numbers = itertools.count()
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()  # chosen last: others may take it until it is used
        self.start()

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://l2h:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/{name}"

    def new(self) -> str:
        """The URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def start(self, *, wait: bool = True) -> None:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": self._fsync,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [POSTGRES, "-D", self.folder / "data", *options], stderr=log, stdout=log, **self._as_user()
            )
        if wait:
            until(self.answers, alive=self._runs)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _runs(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]

    def kill(self) -> None:
        """``kill -9`` of the server and all its processes."""
        assert self.process is not None
        gone = self._signal(signal.SIGKILL)
        self.process.wait()
        until(lambda: not any(map(_lives, gone)))  # they hold its memory

    def stop(self) -> None:
        """The end of the server, at once and in order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def pause(self) -> None:
        """It holds its connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def _signal(self, number: int) -> list[str]:
        """Send a signal to the server and to its processes, each of which has a group of its own; return those."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)
        return children

    def _as_user(self) -> dict:
        user = {"user": self._user} if os.geteuid() == 0 else {}
        return {"start_new_session": True, "cwd": self.folder, **user}
