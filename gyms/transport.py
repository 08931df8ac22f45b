"""One HTTP post with a deadline: what comes of it, the same by ``blocking_http`` and ``async_http``.

No cookie is kept, no proxy is taken from the environment, nothing is sent twice.
"""

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httpcore
import httpx

from gymqual.gyms.base import Kind

KEEP_ALIVE_S = 5.0
"""Idle connections are dropped before a server would (30 s), so that none is closed under a call."""


@dataclass(frozen=True)
class Answer:
    """What came back, not looked at yet."""

    status: int
    headers: httpx.Headers
    content: bytes


class TransportFault(Exception):
    """No answer. The call may have been delivered."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def require_url(url: str) -> str:
    """Return the base URL of a service without a trailing slash; raises ValueError if it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname and parts.port and not parts.path.strip("/")
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{url!r} is no service's URL; write it like http://127.0.0.1:18765")
    return url.rstrip("/")


class Transport(Protocol):
    """How posts are made."""

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once and return the whole answer; raises TransportFault, ``timeout`` or ``unreachable``."""
        ...

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


def fault_of(path: str, error: Exception, deadline_s: float) -> TransportFault:
    """Return the fault that an exchange ended with."""
    # A connection that is not accepted in time is nobody there, like one that is refused.
    if isinstance(error, TimeoutError | httpcore.TimeoutException) and not isinstance(error, httpcore.ConnectTimeout):
        return TransportFault(Kind.TIMEOUT, f"no answer from {path} within {deadline_s} s")
    # RuntimeError: a pool that was closed.
    return TransportFault(Kind.UNREACHABLE, f"{path}: {type(error).__name__} {error}")
