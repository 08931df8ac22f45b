"""The transport that posts on the running event loop."""

import asyncio
import time
from typing import cast
from urllib.parse import urlsplit

import h11
import httpx

from gymqual.gyms.base import Kind
from gymqual.gyms.transport import KEEP_ALIVE_S, Answer, TransportFault, fault_of, require_url


class AsyncHttp:
    """Posts on the running event loop, each on a connection that no other post uses meanwhile.

    No pool of httpx or httpcore: theirs looks at all connections at every post, and with 256 sessions the closing of
    sessions ran out of time.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = require_url(url)
        parts = urlsplit(self._url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._headers = [*headers.items(), ("host", parts.netloc), ("content-type", "application/json")]
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once; see Transport."""
        self._require_usable(path)
        until = asyncio.get_running_loop().time() + deadline_s
        connection = self._take_idle() or await self._connect(path, until)
        try:
            async with asyncio.timeout_at(until):
                answer = await connection.exchange(
                    path, [*self._headers, ("content-length", str(len(content)))], content
                )
        except (TimeoutError, OSError, h11.ProtocolError) as error:
            raise fault_of(path, error, deadline_s) from None
        finally:
            self._put_back(connection)
        return answer

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        # Those of a loop that has ended are gone with it.
        if self._loop is not None and not self._loop.is_closed():
            for connection in list(self._connections):
                connection.abort()

    def _require_usable(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._closed:
            raise TransportFault(Kind.UNREACHABLE, f"{path}: the client has been closed")
        if self._loop is not loop:
            raise TransportFault(Kind.UNREACHABLE, f"{path}: the client belongs to another event loop")

    def _take_idle(self) -> "_Connection | None":
        oldest_allowed = time.monotonic() - KEEP_ALIVE_S
        while self._idle:
            # The newest: the others grow old together, and are dropped once one of them is wanted.
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest_allowed:
                return connection
            connection.abort()
        return None

    async def _connect(self, path: str, until: float) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until):
                return (await loop.create_connection(lambda: _Connection(self._connections), self._host, self._port))[1]
        except OSError as error:
            # One that is not accepted in time is nobody there, like one that is refused.
            raise TransportFault(Kind.UNREACHABLE, f"{path}: no connection ({str(error) or 'in time'})") from None

    def _put_back(self, connection: "_Connection") -> None:
        if connection.reusable() and not self._closed:
            self._idle.append(connection)
        else:
            connection.abort()


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time; whatever is not a whole exchange ends it."""

    def __init__(self, connections: set["_Connection"]) -> None:
        self._connections = connections
        self._http = h11.Connection(h11.CLIENT)
        self._waiter: asyncio.Future[Answer] | None = None
        self._response: h11.Response | None = None
        self._body = bytearray()
        self.usable = True
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    async def exchange(self, path: str, headers: list[tuple[str, str]], content: bytes) -> Answer:
        """Post and return the answer; raises OSError or h11.ProtocolError. Cancelled, it leaves nothing usable."""
        self._response, self._body = None, bytearray()
        self._waiter = asyncio.get_running_loop().create_future()
        request = h11.Request(method="POST", target=path, headers=headers)
        parts = (self._http.send(request), self._http.send(h11.Data(content)), self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))
        try:
            return await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def data_received(self, data: bytes) -> None:
        self._http_received(data)

    def eof_received(self) -> None:
        self._http_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server ended the connection"))
        self._connections.discard(self)

    def abort(self) -> None:
        """Drop the connection. Idempotent."""
        self.usable = False
        self._transport.abort()

    def reusable(self) -> bool:
        """Make ready for the next exchange, and whether there can be one."""
        if self.usable and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.idle_since = time.monotonic()
            return True
        return False

    def _http_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            # What nobody asked for, the server's end included, is the answer to nothing that comes.
            self.abort()
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Response():
                        self._response = event
                    case h11.Data():
                        self._body += event.data
                    case h11.EndOfMessage():
                        self._answer()
                        return
                    case h11.ConnectionClosed():
                        raise h11.RemoteProtocolError("the server ended the connection without an answer")
        except h11.RemoteProtocolError as error:
            self._fail(error)

    def _answer(self) -> None:
        assert self._waiter is not None
        assert self._response is not None
        # What follows the answer at once belongs to no request.
        if self._http.trailing_data[0]:
            self.usable = False
        answer = Answer(
            self._response.status_code, httpx.Headers(self._response.headers.raw_items()), bytes(self._body)
        )
        self._waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
