"""nginx as a real process, with the file of deploy/, before servers on several ports."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from waiting import free_port, until

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin")
FILE = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"


def configuration(folder: Path, ports: list[int], certificate: tuple[Path, Path] | None = None) -> tuple[Path, int]:
    """Write what nginx runs with; return its file, and the port it listens on. Without a certificate it has no TLS."""
    port, text = free_port(), FILE.read_text()
    text = text.replace("server 127.0.0.1:8080;", " ".join(f"server 127.0.0.1:{each};" for each in ports))
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port}{'' if certificate is None else ' ssl'};")
    for name, path in zip(("ssl_certificate ", "ssl_certificate_key "), certificate or (None, None), strict=True):
        text = re.sub(rf"^ *{name}.*$", "" if path is None else f"{name} {path};", text, flags=re.MULTILINE)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;\n"
    whole += f"events {{ worker_connections 1024; }}\nhttp {{\naccess_log off; {temporary}\n{text}\n}}\n"
    (folder / "nginx.conf").write_text(whole)
    return folder / "nginx.conf", port


@contextmanager
def nginx(folder: Path, ports: list[int]) -> Iterator[int]:
    """Its port, once it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    file, port = configuration(folder, ports)
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", file, "-e", folder / "error.log"])
    try:
        until(lambda: _answers(port), alive=lambda: _check(process, folder))
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _check(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.poll() is None, (folder / "error.log").read_text()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
