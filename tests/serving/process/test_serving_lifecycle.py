"""Starting, reloading, stopping, and what goes wrong meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx
import pytest
from serving_maker import linear, write_bundle
from serving_process import Client, Load, Server, make_key
from waiting import STUCK, until

from l2h import protocol
from l2h.bundle import ServerBundle
from l2h.serving.accounts.key import Rate


def test_the_command_serves(bundle, tmp_path, x):
    """As a person calls it: the first line says all, Ctrl-C ends it."""
    command = [sys.executable, "-m", "l2h", "serve", str(bundle), "--port", "0", "--workers", "2", "--threads", "1"]
    with Server(bundle, tmp_path, command=[*command, "--ledger", str(tmp_path / "ledger.db")]) as server:
        assert server.line == (
            f"serving digits {server.version} at http://127.0.0.1:{server.port}, 2 workers of 1 thread, open to "
            f"everybody on this machine (no --keys), ledger {tmp_path}/ledger.db\n"
        )
        assert Client(server).ask(x).status == 200
        torch = subprocess.run(["grep", "-c", "libtorch", f"/proc/{server.process.pid}/maps"], check=False)
        assert torch.returncode == 1, "the server holds no torch"
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(STUCK) == 0


def test_help_and_settings(bundle, capsys):
    from l2h.cli.app import run

    assert run(["serve", "--help"]) == 0
    assert "Example: l2h serve bundles/digits" in capsys.readouterr().out
    assert run(["serve", str(bundle), "--print-config", "--max-wait", "250"]) == 0
    assert json.loads(capsys.readouterr().out)["max_wait"] == 0.25
    assert run(["serve", str(bundle), "--workers", "0"]) == 2
    assert "between 1 and 256" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "more", "status"), [("0.0.0.0", [], 2), ("::", [], 2), ("127.0.0.2", ["-x"], 0)])
def test_an_open_server_is_for_this_machine(bundle, host, more, status, capsys):
    from l2h.cli.app import run

    assert run(["serve", str(bundle), "--host", host, "--print-config"]) == status
    assert ("--open" in capsys.readouterr().err) == (status == 2)
    assert run(["serve", str(bundle), "--host", host, "--print-config", "--open"]) == 0


def test_a_port_in_use_is_said_in_one_line(bundle, server, tmp_path):
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        with Server(bundle, folder, port=server.port, workers=workers, wait=False) as second:
            assert second.process.wait(STUCK) == 1
            (line,) = second.events("server_failed")
            said = f"port {server.port} of 127.0.0.1 is in use: stop what uses it, or give another --port"
            assert (line["error"], len(second.log.read_text().splitlines())) == (said, 1)
            assert not second.ledger.exists()


def test_a_bundle_that_is_none(tmp_path):
    with Server(tmp_path / "nothing", tmp_path / "s", wait=False) as server:
        assert server.process.wait(STUCK) == 1
        assert "manifest.json is missing" in server.log.read_text()


def test_a_new_bundle_is_taken_over_without_dropping_a_request(tmp_path, x):
    folder = tmp_path / "b"
    versions = [write_bundle(folder, linear(seed=0)).version]
    with Server(folder, tmp_path / "s", workers=2) as server, Load(server) as load:
        for seed in (1, 2, 3):
            before = load.statuses[200]
            until(lambda before=before: load.statuses[200] > before + 50)
            versions.append(write_bundle(folder, linear(seed=seed)).version)
            newest = versions[-1]
            until(lambda newest=newest: load.versions[newest] > 50)
            until(lambda seed=seed: len(server.events("bundle_taken")) == 2 * seed)
        assert set(load.statuses) == {200}
        assert load.broken == []
        assert Client(server).ask(x).scores.argmax(1).tolist() == ServerBundle(folder).run(x).argmax(1).tolist()
        assert json.loads(server.get("/v2/models/digits")[1])["versions"] == [versions[-1]]
    assert set(load.versions) == set(versions)
    assert {version for (version,) in server.rows("version")} == set(versions)


@pytest.mark.long
def test_a_broken_bundle_changes_nothing(tmp_path, x):
    folder = tmp_path / "b"
    old = write_bundle(folder, linear())
    with Server(folder, tmp_path / "s", watch=0.05) as server:
        wanted = Client(server).ask(x).scores.tolist()
        good = (folder / "server.onnx").read_bytes()
        (folder / "server.onnx").write_bytes(good[:-1])
        assert "damaged" in until(lambda: server.events("bundle_refused"))[-1]["error"]
        write_bundle(folder, b"no model at all")
        until(lambda: "cannot be loaded" in server.events("bundle_refused")[-1]["error"])
        write_bundle(folder, linear(seed=1), name="other")
        until(lambda: "is named 'other'" in server.events("bundle_refused")[-1]["error"])
        (folder / "manifest.json").write_text("{")
        until(lambda: "damaged" in server.events("bundle_refused")[-1]["error"])
        assert Client(server).ask(x).scores.tolist() == wanted
        assert json.loads(server.get("/v2/models/digits")[1])["versions"] == [old.version]
        write_bundle(folder, good)
        until(lambda: server.events("bundle_unchanged"))
        assert server.get("/v2/health/ready")[0] == 200


def test_sighup_makes_it_look_at_once(tmp_path, x):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    with Server(folder, tmp_path / "s", watch=3600.0) as server:
        version = write_bundle(folder, linear(seed=1)).version
        server.signal(signal.SIGHUP)
        until(lambda: json.loads(server.get("/v2/models/digits")[1])["versions"] == [version])


def stop_under_load(bundle, folder) -> list[int]:
    """The statuses of asking whether it is ready, from the signal on."""
    with Server(bundle, folder, workers=2) as server:
        ready: list[int] = []
        with Load(server, threads=16) as load:
            until(lambda: load.statuses[200] > 100)
            server.signal(signal.SIGTERM)
            while server.process.poll() is None:
                try:
                    ready.append(server.get("/v2/health/ready")[0])
                except OSError:
                    break
            assert server.process.wait(STUCK) == 0
        refused = [error for error in load.broken if "ConnectionRefused" not in error]
        assert refused == [], "a request that was taken is answered"
        assert set(load.statuses) == {200}
        assert sorted(load.good) == sorted(key for (key,) in server.rows("idempotency_key"))
    return ready


def test_sigterm_answers_all_that_came_and_exits_with_0(tmp_path):
    write_bundle(tmp_path / "b", linear(hidden=600, layers=2))
    # It says for 0.3 s only that it is not ready, which a busy machine may miss.
    assert any(503 in stop_under_load(tmp_path / "b", tmp_path / str(number)) for number in range(5))


def test_a_worker_that_dies_is_replaced(bundle, tmp_path, x):
    with Server(bundle, tmp_path) as server:
        (first,) = server.workers
        os.kill(first, signal.SIGKILL)
        assert Client(server).ask(x).status == 200, "the connection waits for the next worker"
        assert server.workers != [first]
        assert server.stop() == 0


def test_workers_do_not_outlive_the_server(bundle, tmp_path, x):
    with Server(bundle, tmp_path, workers=2) as server:
        workers = server.workers
        server.process.kill()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
        with socket.socket() as free:
            free.bind(("127.0.0.1", server.port))


def test_tls(bundle, tmp_path, certificate, x):
    cert, key = certificate
    with Server(bundle, tmp_path, tls_cert=str(cert), tls_key=str(key)) as server:
        assert server.scheme == "https"
        trusted = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(f"{server.url}/v2/health/ready", context=trusted, timeout=20) as answer:
            assert answer.status == 200
        body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
        asked = httpx.post(f"{server.url}/v2/models/digits/infer", content=body, headers=headers, verify=trusted)
        assert (asked.status_code, len(server.rows())) == (200, 1)
        with pytest.raises(OSError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=20)


def make_certificate(folder, name: str) -> tuple[bytes, bytes]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, *more], check=True, capture_output=True)
    return cert.read_bytes(), key.read_bytes()


def test_a_certificate_is_read_again_and_no_connection_is_dropped(bundle, tmp_path, x):
    (first, first_key), (second, second_key) = (make_certificate(tmp_path, name) for name in ("first", "second"))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(first)
    key.write_bytes(first_key)
    body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
    with Server(bundle, tmp_path, tls_cert=str(cert), tls_key=str(key), workers=2) as server:
        shown = ssl.PEM_cert_to_DER_cert

        def certificate() -> bytes:
            return shown(ssl.get_server_certificate(("127.0.0.1", server.port)))

        kept = httpx.Client(verify=False, timeout=STUCK, limits=httpx.Limits(keepalive_expiry=None))

        def ask() -> int:
            return kept.post(f"{server.url}/v2/models/digits/infer", content=body, headers=headers).status_code

        assert (ask(), certificate()) == (200, shown(first.decode()))
        with kept.stream("GET", f"{server.url}/v2") as answer:
            peer = answer.extensions["network_stream"].get_extra_info("client_addr")
            answer.read()
        key.write_bytes(second_key)  # for a moment they do not fit
        until(lambda: len(server.events("certificate_refused")) >= 2)
        assert (ask(), certificate()) == (200, shown(first.decode()))
        cert.write_bytes(second)
        until(lambda: len(server.events("certificate_reloaded")) == 2)
        assert {certificate() for _ in range(8)} == {shown(second.decode())}
        assert ask() == 200
        with kept.stream("GET", f"{server.url}/v2") as answer:
            assert answer.extensions["network_stream"].get_extra_info("client_addr") == peer, "the same connection"
            answer.read()
        kept.close()
        assert not server.events("worker_died")


@pytest.mark.long
def test_metrics_do_not_grow_with_reloads(bundle, tmp_path):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    with Server(folder, tmp_path, workers=2) as server:
        for seed in range(1, 5):
            write_bundle(folder, linear(seed))
            until(lambda seed=seed: len(server.events("bundle_taken")) == 2 * seed)
        text = server.get("/metrics")[1].decode()
        (line,) = [line for line in text.splitlines() if line.startswith("l2h_model_info{")]
        assert line == f'l2h_model_info{{name="digits",version="{server.events("bundle_taken")[-1]["version"]}"}} 2.0'


def test_every_line_of_the_log_is_json_of_one_style(bundle, tmp_path, x):
    with Server(bundle, tmp_path) as server:
        assert Client(server).ask(x).status == 200
        assert server.stop() == 0
    with Server(bundle, tmp_path, ledger=str(bundle / "manifest.json" / "ledger.db"), wait=False) as server:
        assert server.process.wait(STUCK) == 1
    lines = server.log.read_text().splitlines()
    events = {"started", "request", "draining", "stopped", "server_failed"}
    assert {json.loads(line)["event"] for line in lines} == events
    for line in lines:
        value = json.loads(line)
        assert list(value)[:4] == ["time", "level", "event", "pid"]
        assert line == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_a_key_with_a_passphrase_and_one_that_is_none_are_told_at_once(bundle, tmp_path, certificate):
    cert, key = certificate
    locked, junk = tmp_path / "locked.pem", tmp_path / "junk.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)], check=True
    )
    junk.write_text("no key")
    for file, said in ((locked, "passphrase"), (junk, "no certificate and its key")):
        server = Server(bundle, tmp_path / file.stem, wait=False, tls_cert=str(cert), tls_key=str(file))
        assert server.process.wait(STUCK) == 1
        server.kill()
        assert said in server.log.read_text()
        assert file.name in server.log.read_text()


def test_no_file_that_is_mapped_lies_in_the_temporary_folder(bundle, tmp_path, x, monkeypatch):
    """A mapped file on a disk that fills up would kill the workers."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    path, _, key = make_key(tmp_path, rate=Rate.parse("100/s"))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        assert Client(server, key).ask(x).status == 200
        for pid in (server.process.pid, *server.workers):
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert str(tmp_path / "tmp") not in mapped


def test_a_bundle_of_other_classes_or_inputs_is_not_taken_over(bundle, tmp_path, x):
    """Devices in the field have those of the old one."""
    folder = tmp_path / "bundle"
    write_bundle(folder, linear())
    with Server(folder, tmp_path) as server:
        write_bundle(folder, linear(seed=1, classes=7), classes=7)
        until(lambda: server.events("bundle_refused"))
        write_bundle(folder, linear(seed=1, shape=(1, 2, 2)), shape=(1, 2, 2))
        until(lambda: len(server.events("bundle_refused")) == 2)
        assert all("other classes or inputs" in event["error"] for event in server.events("bundle_refused"))
        assert Client(server).ask(x).status == 200
        write_bundle(folder, linear(seed=2))
        until(lambda: server.events("bundle_taken"))


def test_a_version_in_the_path_is_the_one_that_answers(bundle, tmp_path, x):
    """Also where it is replaced while the body comes."""
    folder = tmp_path / "bundle"
    write_bundle(folder, linear())
    with Server(folder, tmp_path) as server:
        body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
        path = f"/v2/models/digits/versions/{server.version}/infer"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
            peer.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode())
            peer.sendall(body[:10])
            write_bundle(folder, linear(seed=1))
            until(lambda: server.events("bundle_taken"))
            peer.sendall(body[10:])
            assert peer.recv(100).split(b" ")[1] == b"404"
        assert server.rows() == [], "and nothing is charged"


@pytest.mark.long
def test_a_worker_that_is_stuck_is_replaced(bundle, tmp_path, x):
    """A stopped process holds its share of the connections; whoever is among them waits no longer than this."""
    with Server(bundle, tmp_path, workers=2) as server:
        stuck, other = server.workers
        os.kill(stuck, signal.SIGSTOP)
        until(lambda: server.events("worker_stuck"))
        assert [event["worker"] for event in server.events("worker_stuck")] == [stuck]
        until(lambda: len(server.workers) == 2 and stuck not in server.workers)
        assert other in server.workers
        assert all(Client(server).ask(x).status == 200 for _ in range(20))


@pytest.mark.long
def test_a_server_that_was_stopped_as_a_whole_goes_on(bundle, tmp_path, x):
    with Server(bundle, tmp_path, workers=2) as server:
        workers = server.workers
        os.killpg(server.process.pid, signal.SIGSTOP)
        time.sleep(18)
        os.killpg(server.process.pid, signal.SIGCONT)
        time.sleep(3)
        assert Client(server).ask(x).status == 200
        assert server.workers == workers


@pytest.mark.long
def test_logs_are_json_lines_with_what_one_needs(bundle, tmp_path, x):
    with Server(bundle, tmp_path) as server:
        Client(server).ask(x, X_Request_Id="seen")
        Client(server).ask(x[:, 0], X_Request_Id="refused")
        server.stop()
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    good, bad = (line for line in lines if line["event"] == "request")
    assert good["request_id"] == "seen"
    assert (good["key"], good["status"], good["n"], good["batch"], good["charged"]) == ("anonymous", 200, 3, 3, True)
    assert 0 < good["ms"] < 30_000
    assert (bad["request_id"], bad["status"], bad["reason"]) == ("refused", 400, "malformed")
    with Server(bundle, tmp_path / "quiet", log_requests=False) as server:
        Client(server).ask(x)
        server.stop()
        assert server.events("request") == []
