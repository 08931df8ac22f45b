"""A TCP proxy that breaks the wire between client and server on demand: the nemesis of fault checks.

It works below HTTP and WebSocket, so that both meet the same faults. It counts the requests that pass, so
that a client which sends a call again is caught.
"""

import asyncio
import socket
import struct
import threading
from enum import StrEnum
from types import TracebackType
from typing import Self

from gymqual.harness.process.server import LOOPBACK

_CHUNK = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on with time-out 0: close sends RST instead of FIN."""


TRICKLE_PAUSE_S = 0.3


class Fault(StrEnum):
    """What happens to the next bytes."""

    NONE = "none"
    CUT = "cut"
    """Half of an answer arrives, then the connection is closed."""
    RESET = "reset"
    """The connection is reset instead of answered."""
    STALL = "stall"
    """Requests arrive, answers do not."""
    REFUSE = "refuse"
    """Connections are closed as soon as they are made, those that exist at once."""
    EMPTY = "empty"
    """The request is not delivered; the answer is an HTTP 200 without a body."""
    TRICKLE = "trickle"
    """The answer arrives byte by byte, each in good time, all of it never."""


class FaultProxy:
    """A proxy on loopback in front of ``target_port``; ``with FaultProxy(port) as proxy: proxy.fault = ...``."""

    def __init__(self, target_port: int) -> None:
        self.fault = Fault.NONE
        self.requests = 0
        """Requests that were delivered to the server."""
        self.answered: list[bytes] = []
        """What the server sent, connection by connection, before any fault: the wire's own log."""
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._serve, LOOPBACK, 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(timeout=10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    @property
    def url(self) -> str:
        """Base URL of the proxy."""
        return f"http://{LOOPBACK}:{self.port}"

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault is Fault.REFUSE:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
        to_server = asyncio.create_task(self._forward_requests(reader, writer, server_writer))
        to_client = asyncio.create_task(self._forward_answers(server_reader, writer))
        try:
            await asyncio.wait({to_server, to_client}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The proxy is stopped; asyncio would print this task's cancellation as an error.
            pass
        finally:
            for task in (to_server, to_client):
                task.cancel()
            for each in (writer, server_writer):
                each.close()

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self.fault is Fault.REFUSE:
                return
            if self.fault is Fault.EMPTY:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                continue
            self.requests += data.count(b" HTTP/1.1\r\n")
            server.write(data)
            await server.drain()

    async def _forward_answers(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.answered)
        self.answered.append(b"")
        while data := await server.read(_CHUNK):
            self.answered[number] += data
            if self.fault is Fault.STALL:
                continue
            if self.fault is Fault.RESET:
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
                return
            if self.fault is Fault.CUT:
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            if self.fault is Fault.TRICKLE:
                for byte in data:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(TRICKLE_PAUSE_S)
                continue
            writer.write(data)
            await writer.drain()
