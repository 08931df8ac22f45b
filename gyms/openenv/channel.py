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

from gymqual.gyms.base import Kind
from gymqual.gyms.openenv.launch import MAX_MESSAGE_BYTES
from gymqual.gyms.transport import TransportFault

PROTOCOL = "gymqual.openenv/1"
_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """What came is no frame of this protocol."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Return a message as a frame; raises FrameError if it is too long."""
    # ASCII escapes carry whatever a model wrote, lone surrogates included.
    content = json.dumps(message).encode()
    return _LENGTH.pack(_bounded(len(content))) + content


def unpack(content: bytes | bytearray) -> dict[str, Any]:
    """Return the message of a frame's content; raises FrameError."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise FrameError(f"{len(content)} bytes that are no JSON object")
    return message


class Unpacker:
    """Puts the messages of one side together; never more than one is expected at a time."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> dict[str, Any] | None:
        """Return the message that is complete now, None if none is; raises FrameError, also for more than one."""
        self._received += data
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        end = _LENGTH.size + _bounded(length)
        if len(self._received) < end:
            return None
        if len(self._received) > end:
            raise FrameError("more than one message at a time")
        message = unpack(self._received[_LENGTH.size :])
        self._received.clear()
        return message


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
            received = Unpacker()
            while True:
                part = self._socket.recv(65536)
                if not part:
                    raise ConnectionResetError("the bridge ended the connection")
                answer = received.feed(part)
                if answer is not None:
                    return answer
                # Only for an answer in several parts: each call of it is a system call.
                self._socket.settimeout(_left(until))
        except (OSError, FrameError) as error:
            self.close()
            raise _fault(error, deadline_s) from None

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
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                return unpack(await reader.readexactly(_bounded(length)))
        except asyncio.IncompleteReadError:
            self.close()
            raise _fault(ConnectionResetError("the bridge ended the connection"), deadline_s) from None
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
