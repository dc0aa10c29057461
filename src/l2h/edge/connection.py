"""One connection to the server: one exchange at a time, whose answer is bounded in bytes and in work."""

import asyncio

import h11

from l2h.edge.reasons import bad_answer

#: An answer may come in so many reads and as many events of HTTP, and one more of each per so many bytes of its body.
_PIECES, _PIECE = 128, 512
#: So many answers that are not final (1xx) may come before the final one.
_INTERIM = 8
#: Bytes that the parser gets at a time, and the most that a head may have.
_SLICE = 1 << 13
#: Bytes that may come beside the body: heads, and the frames of chunks.
_FRAMES = 1 << 16
#: After so many events in a row other threads and requests get their turn.
_BURST = 16


class Connection(asyncio.Protocol):
    """Sends requests and reads their answers. h11 knows HTTP; the bounds and the waiting are kept here."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_SLICE)
        self._data = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._bytes = self._reads = self._events = 0  # how many more the present answer may have
        self.error: Exception | None = None  # of the network, where that ended it
        self.ended = False  # whether nothing more will come
        self.broken = False  # whether the answer was cut short by that

    async def ask(self, request: h11.Request, body: bytes, most: int) -> h11.Response:
        """Send a request and return the head of its answer, of whose body at most so many bytes will be read."""
        assert self._transport is not None
        self._bytes, self._reads = most + _FRAMES, _PIECES + most // _PIECE
        self._events = self._reads
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        for _ in range(_INTERIM + 1):
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
        raise bad_answer(f"more than {_INTERIM} answers came that were not final (1xx)")

    async def read(self, most: int) -> bytes:
        """Return the body of the answer; reading stops with the first piece beyond ``most`` bytes."""
        body = bytearray()
        while len(body) <= most:
            event = await self._event()
            if not isinstance(event, h11.Data):
                break
            body += event.data
        return bytes(body)

    def finish(self) -> bool:
        """End the exchange; return whether the connection can have another, and close it where it cannot."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        # What comes beyond the answer would be taken for the next one; and where reading is paused, none would come.
        paused = self._bytes < 0 or self._reads < 0
        if not done or self.ended or paused or self._data or self._http.trailing_data[0]:
            self.abort()
            return False
        self._http.start_next_cycle()
        return True

    def abort(self) -> None:
        """Close the connection at once."""
        self.ended = True
        if self._transport is not None:
            self._transport.abort()

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                self._events -= 1
                if self._events < 0:
                    raise bad_answer("the answer comes in too many pieces")
                if self._events % _BURST == 0:
                    await asyncio.sleep(0)
                return event
            if not self._data and not self.ended:
                if self._bytes < 0 or self._reads < 0:
                    raise bad_answer("the answer is too long, or comes in too many pieces")
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self.broken = not self._data
            self._http.receive_data(bytes(self._data[:_SLICE]))
            del self._data[:_SLICE]

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._http.our_state is h11.IDLE:  # nothing was asked
            self.abort()
            return
        self._data += data
        self._bytes -= len(data)
        self._reads -= 1
        if (self._bytes < 0 or self._reads < 0) and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended, self.error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
