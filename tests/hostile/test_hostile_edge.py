"""Servers that attack the edge client: with many tiny pieces, with words out of turn, and by being too slow for all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import h11
import numpy as np
import pytest
from rough_server import RoughServer
from waiting import until

from l2h import AsyncEdgeClient, Costs, EdgeClient, protocol
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge.connection import Connection

ALL = Costs(c_e=0.0, c_1=0.0)
#: What the edge accepts of one answer, as docs/edge.md says: answers before the final one, and pieces of it.
INTERIM, PIECES, PIECE, BODY = 8, 128, 512, 65536


class Rogue(RoughServer):
    """Attacks with what its argument says; ``served`` counts the answers of ``do_serial``."""

    served = 0
    sent = 0
    turn: asyncio.Lock | None = None

    async def do_interim(self, asked, reader, writer, argument):
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * int(argument))
        return await self.do_answer(asked, reader, writer, "")

    async def do_chunks(self, asked, reader, writer, argument):
        """The answer in so many chunks, all but the last of one byte."""
        body, headers = self.encoded(asked)
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        body = body.ljust(int(argument))  # JSON may end in spaces
        pieces = [body[i : i + 1] for i in range(int(argument) - 1)] + [body[int(argument) - 1 :]]
        frames = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        writer.write(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{lines}\r\n".encode() + frames + b"0\r\n\r\n")
        await writer.drain()
        return True

    async def do_segments(self, asked, reader, writer, argument):
        """One byte after the other, each in a segment of its own."""
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n".encode())
        gone = asyncio.ensure_future(reader.read())
        while not gone.done():
            writer.write(b" ")
            self.sent += 1
            await asyncio.sleep(0.0005)
        return False

    async def do_head(self, asked, reader, writer, argument):
        """A head of so many lines."""
        body, headers = self.encoded(asked)
        return await self._reply(writer, body, 200, headers | {f"x{i}": "" for i in range(int(argument))})

    async def do_trailers(self, asked, reader, writer, argument):
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * int(argument) + b"\r\n"
        )
        await writer.drain()
        return True

    async def do_switch(self, asked, reader, writer, argument):
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
        await reader.read()
        return False

    async def do_twice(self, asked, reader, writer, argument):
        """The answer, and one more for a request that nobody made."""
        await self.do_answer(asked, reader, writer, "")
        return await self.do_answer(asked, reader, writer, "")

    async def do_half_closed(self, asked, reader, writer, argument):
        """The answer, or none, then the end of this side alone."""
        if argument == "after":
            await self.do_answer(asked, reader, writer, "")
        writer.write_eof()
        await reader.read()
        return False

    async def do_serial(self, asked, reader, writer, argument):
        """One request after another, whether or not anybody still waits for it, as a server does that charges."""
        self.turn = self.turn or asyncio.Lock()
        async with self.turn:
            await asyncio.sleep(float(argument))
            self.served += 1
        return await self.do_answer(asked, reader, writer, "")


@pytest.fixture(scope="module")
def device(bundles):
    return bundles("separate")


@pytest.fixture
def rogue(device):
    manifest = DeviceBundle(device).manifest
    shape, datatype = manifest.input.shape, protocol.datatype(manifest.input.dtype)
    with Rogue(
        ServerBundle(device).run, name=manifest.name, shape=shape, datatype=datatype, classes=len(manifest.classes)
    ) as running:
        yield running


@pytest.fixture
def x(device):
    bundle = DeviceBundle(device)
    return np.zeros((1, *bundle.input_shape), bundle.input_dtype)


def ask(device, rogue, x, mode, times=1, **options):
    """The reasons of calls in turn, and whether the last came back well before its deadline."""
    with EdgeClient(device, rogue.url, deadline=20.0, costs=ALL, retries=0, **options) as edge:
        rogue.mode = mode
        begun = time.monotonic()
        reasons = [edge.predict(x)[0].reason for _ in range(times)]
        assert time.monotonic() - begun < 10.0
        return reasons


def test_so_many_interim_answers_and_not_one_more(device, rogue, x):
    assert ask(device, rogue, x, f"interim:{INTERIM}", 2) == ["worth_asking"] * 2
    assert ask(device, rogue, x, f"interim:{INTERIM + 1}") == ["bad_answer"]
    assert ask(device, rogue, x, "interim:100000") == ["bad_answer"]


def test_an_answer_in_so_many_pieces_and_not_one_more(device, rogue, x):
    classes = len(DeviceBundle(device).manifest.classes)
    chunks = PIECES + (BODY + 32 * classes) // PIECE - 2  # its head and its end count as well
    assert ask(device, rogue, x, f"chunks:{chunks}", 2, binary=False) == ["worth_asking"] * 2
    assert ask(device, rogue, x, f"chunks:{chunks + 1}", binary=False) == ["bad_answer"]
    assert ask(device, rogue, x, "chunks:60000", binary=False) == ["bad_answer"]


def test_an_answer_of_one_byte_after_the_other_is_cut(device, rogue, x):
    assert ask(device, rogue, x, "segments") == ["bad_answer"]
    assert rogue.sent < BODY / 4


@pytest.mark.parametrize("pieces", [PIECES, PIECES + 1])
def test_a_connection_whose_reading_was_stopped_is_not_kept(pieces):
    """Its answer is complete, but came in one piece too many: nothing more would be read from it."""

    class Wire(asyncio.Transport):
        paused = aborted = False

        def write(self, data):
            pass

        def pause_reading(self):
            self.paused = True

        def abort(self):
            self.aborted = True

    async def exchange():
        wire, connection = Wire(), Connection()
        connection.connection_made(wire)
        request = h11.Request(method="GET", target="/", headers=[("Host", "x")])
        asked = asyncio.ensure_future(connection.ask(request, b"", 0))
        await asyncio.sleep(0)
        answer = b"HTTP/1.1 200 OK\r\nX-Long: %b\r\nContent-Length: 0\r\n\r\n" % (b"a" * PIECES)
        for i in range(pieces - 1):
            connection.data_received(answer[i : i + 1])
        connection.data_received(answer[pieces - 1 :])
        assert (await asked).status_code == 200
        assert await connection.read(0) == b""
        assert connection.finish() is not wire.paused
        return wire

    wire = asyncio.run(exchange())
    assert wire.paused is wire.aborted is (pieces > PIECES)


@pytest.mark.parametrize("mode", ["head:5000", "head:100000", "trailers:100000", "switch"])
def test_a_head_beyond_its_bound_and_a_switch_of_protocols_are_no_answers(device, rogue, x, mode):
    assert ask(device, rogue, x, mode) == ["bad_answer"]


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(device, rogue, x):
    assert ask(device, rogue, x, "twice", 4) == ["worth_asking"] * 4


def test_a_server_that_closes_its_side_alone_costs_no_answer_but_its_own(device, rogue, x):
    assert ask(device, rogue, x, "half_closed:after", 3) == ["worth_asking"] * 3
    assert ask(device, rogue, x, "half_closed:before", 2) == ["server_unreachable"] * 2
    until(lambda: rogue.open == 0)


@pytest.mark.parametrize("callers", [8, pytest.param(128, marks=pytest.mark.long)])
def test_more_callers_than_the_server_can_answer_do_not_all_come_too_late(device, rogue, x, callers):
    """It answers one request at a time: what is asked in vain is charged, and keeps it from those who wait."""
    rogue.mode = "serial:0.02"
    found = Counter()

    async def run():
        async with AsyncEdgeClient(device, rogue.url, deadline=0.6, costs=ALL, failures=10**6) as edge:
            end = time.monotonic() + 4.0

            async def caller():
                while time.monotonic() < end:
                    found[(await edge.predict(x))[0].reason] += 1

            await asyncio.gather(*(caller() for _ in range(callers)))
            return edge.stats()

    stats = asyncio.run(run())
    assert set(found) <= {"worth_asking", "crowded", "deadline"}
    assert stats.reasons == found
    asked, used = len(rogue.asked), found["worth_asking"]
    assert asked <= stats.requests
    assert used >= 30  # of about 190
    # A request too many teaches the client that; later ones are not sent, and so neither charged.
    assert asked - used <= 16 + 0.2 * asked, (asked, used, found)
