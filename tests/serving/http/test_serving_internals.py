"""What the server needs of uvicorn and httptools beyond their documentation: a new version must not break it unseen.

Most of these names fail in silence when they change: a method that is overridden and no longer called, an attribute
that is read with a default. ``pyproject.toml`` bounds both packages to the versions that passed this file.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import socket
import tomllib
from importlib.metadata import version
from pathlib import Path

import httptools
import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from l2h import connections
from l2h.connections import bounded

#: Methods of uvicorn's protocol that ours extends, with their parameters.
EXTENDED = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "eof_received": [],
    "on_headers_complete": [],
    "on_message_complete": [],
    "on_response_complete": [],
    "pause_writing": [],
    "resume_writing": [],
    "send_400_response": ["msg"],
    "shutdown": [],
    "timeout_keep_alive_handler": [],
}
#: Attributes of uvicorn's protocol that ours reads.
READ = {"client", "cycle", "loop", "transport", "url"}
#: What ours has beside that.
ADDED = {"give_way"}

HEAD = b"POST /v2 HTTP/1.1\r\nHost: x\r\n"
PIN = f"uvicorn {uvicorn.__version__}, httptools {httptools.__version__}: bound the version in pyproject.toml, or adapt"


class Transport(asyncio.Transport):
    """A connection to nobody, which keeps what is written."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closed = b"", False

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def can_write_eof(self):
        return False

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def empty_app(scope, receive, send):
    """Answer at once, without reading the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def connect(app, **limits):
    """A connection to an application, just made; the event loop must be running."""
    http = bounded(limits.get("max_connections", 8), limits.get("patience", 60.0))
    config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    made = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
    made.connection_made(Transport())
    return made


def parameters(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def our_methods() -> dict[str, object]:
    return {name: value for name, value in vars(connections.BoundedProtocol).items() if inspect.isfunction(value)}


@pytest.mark.parametrize("name", ["uvicorn", "httptools"])
def test_the_version_is_one_that_this_file_was_run_with(name):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, project["optional-dependencies"]["serve"])
    (bounds,) = (one.specifier for one in wanted if one.name == name)
    assert {"<", ">="} == {bound.operator for bound in bounds}
    assert bounds.contains(version(name)), f"{name} {version(name)} is not within {bounds}"


@pytest.mark.parametrize(("name", "expected"), EXTENDED.items())
def test_each_method_that_we_extend_is_there_with_its_parameters(name, expected):
    method = getattr(HttpToolsProtocol, name, None)
    assert method is not None, f"HttpToolsProtocol.{name} is gone. {PIN}"
    assert parameters(method) == expected, f"HttpToolsProtocol.{name} takes other parameters. {PIN}"
    assert parameters(our_methods()[name]) == expected


def test_the_lists_above_name_everything_that_the_connection_uses():
    public = {name for name in our_methods() if not name.startswith("_")}
    assert public == set(EXTENDED) | ADDED
    tree = ast.parse(inspect.getsource(connections.BoundedProtocol))
    of_self = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]
    ours = {node.attr for node in of_self if isinstance(node.ctx, ast.Store)} | set(vars(connections.BoundedProtocol))
    assert {node.attr for node in of_self} - ours == READ
    private = [name for name in ours if name.startswith("_") and not name.startswith("__")]
    taken = [name for name in private if hasattr(HttpToolsProtocol, name)]
    assert not taken, f"uvicorn has private names that we use for something else: {taken}. {PIN}"


def test_the_attributes_that_we_read_are_there():
    async def run():
        made = connect(empty_app)
        made.data_received(HEAD + b"\r\n")
        missing = [name for name in READ if not hasattr(made, name)]
        assert not missing, f"HttpToolsProtocol has no {missing}. {PIN}"
        assert made in made.connections, f"a connection is no longer counted from connection_made on. {PIN}"
        clash = [name for name in vars(HttpToolsProtocol(made.config, ServerState(), {})) if name.startswith("_")]
        assert not clash, f"HttpToolsProtocol has new private attributes, compare them with ours: {clash}. {PIN}"

    asyncio.run(run())


@pytest.mark.parametrize(("line", "good"), [(b"5", True), (b"0005;a=b", True), (b"5 ", False), (b"5;a=\n", False)])
def test_the_parser_sees_chunks_and_the_end_of_a_body_where_we_do(line, good):
    ended: list[bool] = []

    class Recorder:
        def on_message_complete(self):
            ended.append(True)

    parser = httptools.HttpRequestParser(Recorder())
    with contextlib.nullcontext() if good else pytest.raises(httptools.HttpParserError):
        parser.feed_data(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + line + b"\r\n\r\n\r\na\r\n0")
        assert not ended, PIN
        parser.feed_data(b"\r\na: b\r\n\r\n")
        assert ended, PIN


def test_what_we_raise_within_the_parser_is_its_own_error():
    class Raising:
        def on_header(self, name, value):
            raise ValueError("too many headers")

    with pytest.raises(httptools.HttpParserError):
        httptools.HttpRequestParser(Raising()).feed_data(HEAD + b"\r\n")


def test_bytes_that_are_no_http_reach_our_refusal():
    async def run():
        made = connect(empty_app)
        made.data_received(b"\x16\x03\x01 hello")
        assert made.transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json"), PIN

    asyncio.run(run())


def test_receive_belongs_to_a_cycle_that_says_what_has_come_and_who_is_gone():
    """``read_body`` and ``Job.gone`` read it with a default: without it a peer that hung up would be charged."""
    seen = []

    async def waiting_app(scope, receive, send):
        seen.append(receive.__self__)
        await asyncio.sleep(60)

    async def run():
        made = connect(waiting_app)
        made.data_received(HEAD + b"Content-Length: 2\r\n\r\n1")
        await asyncio.sleep(0)
        (cycle,) = seen
        assert isinstance(cycle, RequestResponseCycle), PIN
        assert (cycle.more_body, cycle.disconnected) == (True, False), PIN
        made.data_received(b"2")
        assert cycle.more_body is False, PIN
        assert (await cycle.receive())["body"] == b"12"
        made.connection_lost(ConnectionResetError())
        assert cycle.disconnected is True, PIN

    asyncio.run(run())


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize(("then", "count"), [(b"", 1), (b"GET", 2)], ids=["idle", "within headers"])
def test_no_timer_outlives_a_connection(error, then, count):
    async def run():
        made, timers = connect(empty_app), []
        loop = made.loop

        class Recording:
            time, create_task = loop.time, loop.create_task

            def call_later(self, *given, **more):
                timers.append(loop.call_later(*given, **more))
                return timers[-1]

        made.loop = Recording()
        made.data_received(HEAD + b"Content-Length: 2\r\n\r\n12")
        while b"200 OK" not in made.transport.written:
            await asyncio.sleep(0)
        if then:
            made.data_received(then)
        assert len(timers) == count, "uvicorn's for the next request, and ours for its headers"
        made.pause_writing()
        made.connection_lost(error)
        assert all(timer.cancelled() for timer in timers), f"a timer of a lost connection goes on. {PIN}"
        assert made not in made.connections

    asyncio.run(run())


def test_the_server_lets_us_keep_the_signals_the_sockets_and_the_handshake():
    calls: list[object] = []

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):
            calls.append("signals")
            yield

    async def run():
        loop, given = asyncio.get_running_loop(), []

        async def create_server(*positional, **named):
            given.append(named)
            return await asyncio.BaseEventLoop.create_server(loop, *positional, **named)

        loop.create_server = create_server
        server = Server(uvicorn.Config(empty_app, ws="none", lifespan="off", log_config=None))
        assert server.server_state.connections == set()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            server.should_exit = True
            await asyncio.wait_for(serving, 10)
        assert calls == ["signals"], f"Server.serve no longer calls capture_signals. {PIN}"
        assert [named["sock"] for named in given] == [listener]
        assert "ssl" in given[0], f"Server no longer passes ssl= by name to create_server. {PIN}"

    asyncio.run(run())
