"""Frames between the trainer and its bridge: a length of four bytes, then JSON, at most MAX_MESSAGE_BYTES.

One connection carries one rollout, one request at a time. The trainer opens it with a hello, which names the
protocol and carries a nonce and the secret; the bridge answers with the nonce and with what it is. Either
side's end is seen by the other as the end of the stream.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Protocol

from gyms.base import Kind
from gyms.openenv.launch import MAX_MESSAGE_BYTES
from gyms.transport import TransportFault

PROTOCOL = "gymqual.openenv/1"
_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """What came is no frame of this protocol."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Return a message as a frame; raises FrameError if it is too long."""
    # ASCII escapes carry whatever a model wrote, lone surrogates included.
    content = json.dumps(message).encode()
    return _LENGTH.pack(_bounded(len(content))) + content


def unpack(content: bytes) -> dict[str, Any]:
    """Return the message of a frame's content; raises FrameError."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise FrameError(f"{len(content)} bytes that are no JSON object")
    return message


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message, None at the end of the stream; raises FrameError, ConnectionError."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return unpack(await reader.readexactly(_bounded(length)))
    except asyncio.IncompleteReadError as cut:
        if cut.partial:
            raise FrameError("the stream ended inside a frame") from None
        return None


def _bounded(length: int) -> int:
    if length > MAX_MESSAGE_BYTES:
        raise FrameError(f"a frame of {length} bytes; {MAX_MESSAGE_BYTES} are allowed")
    return length


class Channel(Protocol):
    """The trainer's end of one connection to the bridge."""

    async def exchange(self, message: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Send one message and return the answer to it; raises TransportFault, after which it is closed."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class BlockingChannel:
    """Exchanges in the calling thread; its coroutine never suspends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    async def exchange(self, message: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """See ``Channel``."""
        until = time.monotonic() + deadline_s
        try:
            frame = pack(message)
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=deadline_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(_left(until))
            self._socket.sendall(frame)
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
            return unpack(self._read(_bounded(length), until))
        except (OSError, FrameError) as error:
            self.close()
            raise _fault(error, deadline_s) from None

    def _read(self, length: int, until: float) -> bytes:
        assert self._socket is not None
        content = bytearray()
        while len(content) < length:
            self._socket.settimeout(_left(until))
            part = self._socket.recv(min(length - len(content), 65536))
            if not part:
                raise ConnectionResetError("the bridge ended the connection")
            content += part
        return bytes(content)

    def close(self) -> None:
        """See ``Channel``."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        # What was closed is never opened again: a new connection would be another rollout.
        self._port = 0


class AsyncChannel:
    """Exchanges on the running event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, message: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """See ``Channel``."""
        try:
            async with asyncio.timeout(deadline_s):
                frame = pack(message)
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(frame)
                await writer.drain()
                answer = await read_frame(reader)
                if answer is None:
                    raise ConnectionResetError("the bridge ended the connection")
                return answer
        except (OSError, FrameError) as error:
            self.close()
            raise _fault(error, deadline_s) from None
        except asyncio.CancelledError:
            # The answer is still to come, and must not be read as the answer to something else.
            self.close()
            raise

    def close(self) -> None:
        """See ``Channel``."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        self._port = 0


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _fault(error: Exception, deadline_s: float) -> TransportFault:
    if isinstance(error, TimeoutError):
        return TransportFault(Kind.TIMEOUT, f"the bridge did not answer within {deadline_s:g} s")
    if isinstance(error, FrameError):
        return TransportFault(Kind.PROTOCOL, f"the bridge sent {error}")
    return TransportFault(Kind.UNREACHABLE, f"the bridge cannot be reached ({error})")
