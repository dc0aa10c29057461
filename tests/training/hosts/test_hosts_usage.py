"""Roles asked for wrongly: told before anything is written or trained."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from commands import Result, assert_told, call, one_line
from hosts_maker import SETTINGS, TOKEN, history

from l2h.training.hosts import HostLink

URL = "http://127.0.0.1:9"
SHORT = ["--set", "server.epochs=1", "--set", "rejector.epochs=1"]


def train(data: Path, out: Path, role: str, *more: object) -> Result:
    arguments = ["train", "--role", role, "--data", data, *SETTINGS, *SHORT, "--out", out, *more]
    return call(*arguments, *(["--linger", 0] if role == "server" else []))


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L2H_TOKEN", TOKEN)


@pytest.mark.parametrize(
    "listen", ["nowhere", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:-1", ":²", "[::1:8470", "[]:1"]
)
def test_a_bad_address_to_listen_on(data: Path, tmp_path: Path, listen: str) -> None:
    result = train(data, tmp_path / "run", "server", "--listen", listen)
    assert_told(result, [2], f"--listen {listen!r}", "HOST:PORT")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("listen", "address"),
    [("[::1]:8470", ("::1", 8470)), ("::1:8470", ("::1", 8470)), ("host:0", ("host", 0)), (":80", ("127.0.0.1", 80))],
)
def test_an_address_to_listen_on(listen: str, address: tuple[str, int]) -> None:
    assert HostLink(TOKEN, listen=listen).address == address


@pytest.mark.parametrize("url", ["host:8470", "ftp://host:21", "http://", "http://host:8470/?a=b", "http://user@host"])
def test_a_bad_address_of_the_server(data: Path, tmp_path: Path, url: str) -> None:
    result = train(data, tmp_path / "run", "client", "--server-url", url)
    assert_told(result, [2], url, "http://HOST:PORT")
    assert not (tmp_path / "run").exists()


def test_a_port_in_use(data: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = train(data, tmp_path / "run", "server", "--listen", f"127.0.0.1:{port}")
        assert_told(result, [1], f"port {port} of 127.0.0.1 is in use", "choose another, or 0 for any free one")
    # Once it is free the run that was begun goes on.
    assert train(data, tmp_path / "run", "server", "--listen", f"127.0.0.1:{port}", "--resume").status == 0
    assert len(history(tmp_path / "run", "server")) == 1


def test_a_port_alone_listens_on_loopback(data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path / "run", "server", "--listen", "0")
    assert result.status == 0
    assert re.search(r"offering weights at http://127\.0\.0\.1:\d+", result.err)


def test_a_client_must_know_its_server(data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path / "run", "client")
    assert result.status == 2
    assert "--server-url" in one_line(result.err)
    assert "Traceback" not in result.err
    assert not (tmp_path / "run").exists()


def test_an_unknown_role(data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path / "run", "broker")
    assert result.status == 2
    assert "'broker' is unknown; known: server, client" in one_line(result.err)


@pytest.mark.parametrize("role", ["server", "client"])
def test_roles_are_of_the_papers_recipe(data: Path, tmp_path: Path, role: str) -> None:
    arguments = ["train", "--role", role, "--data", data, "--server", "mlp", "--client", "tree", "--server-url", URL]
    assert_told(call(*arguments, "--out", tmp_path / "run"), [2], "--role", "--recipe paper")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("role", ["server", "client"])
def test_an_imitated_link_does_not_go_with_a_real_one(data: Path, tmp_path: Path, role: str) -> None:
    result = train(data, tmp_path / "run", role, "--server-url", URL, "--sync", "100")
    assert_told(result, [2], "--sync", "--role")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["start=1", "dropout=true", "joint=true"])
def test_what_needs_the_steps_of_both_sides_goes_with_one_host(data: Path, tmp_path: Path, setting: str) -> None:
    result = train(data, tmp_path / "run", "client", "--server-url", URL, "--set", setting)
    assert_told(result, [2], setting.split("=", maxsplit=1)[0], "one host")
    assert not (tmp_path / "run").exists()


def test_an_unknown_thing_to_send(data: Path, tmp_path: Path) -> None:
    assert_told(train(data, tmp_path / "run", "server", "--send", "hints"), [2], "'hints'", "weights, answers")


def test_no_token(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("server", "client"):
        monkeypatch.setenv("L2H_TOKEN", "  ")
        told = train(data, tmp_path / "run", role, "--server-url", URL)
        assert_told(told, [2], "--token-file", "L2H_TOKEN")
        monkeypatch.delenv("L2H_TOKEN")
        told = train(data, tmp_path / "run", role, "--server-url", URL)
        assert_told(told, [2], "--token-file", "L2H_TOKEN")
    missing = tmp_path / "missing"
    assert_told(train(data, tmp_path / "run", "server", "--token-file", missing), [2], str(missing), "No such file")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe\x00", "schlüssel".encode()])
def test_a_token_file_that_holds_no_token(data: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    result = train(data, tmp_path / "run", "server", "--token-file", file)
    assert_told(result, [2], "token", "openssl rand -hex 16")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_token_that_others_can_read_is_warned_of(data: Path, tmp_path: Path, mode: int, warns: bool) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(mode)
    # Refused for its address, once the token is read: nothing need be trained here.
    result = train(data, tmp_path / "run", "server", "--token-file", file, "--listen", "nowhere")
    assert result.status == 2
    assert ("is readable by others: chmod 600" in result.err) == warns
    assert TOKEN not in result.err


def test_a_server_by_itself_is_no_system_to_judge(data: Path, tmp_path: Path) -> None:
    assert train(data, tmp_path / "run", "server", "--listen", "127.0.0.1:0").status == 0
    result = call("evaluate", tmp_path / "run")
    assert result.status == 1
    assert "Traceback" not in result.err
    again = train(data, tmp_path / "run", "server", "--listen", "127.0.0.1:0")
    assert_told(again, [1], "already holds a run", "--resume", "--force")
