"""One HTTP post with a deadline, blocking or on an event loop; the same errors either way.

No cookie is kept, no proxy is taken from the environment, nothing is sent twice.
"""

import asyncio
import time
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol

import httpx

from gyms.base import Kind

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


class Transport(Protocol):
    """How posts are made."""

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once and return the whole answer; raises TransportFault, ``timeout`` or ``unreachable``."""
        ...

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


class BlockingHttp:
    """Posts in the calling thread; its coroutines never suspend. Thread-safe."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = httpx.Client(
            base_url=url, headers=headers, trust_env=False, limits=_limits(), cookies=_no_cookies()
        )

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once; see Transport. An answer that trickles is cut off at twice the deadline at the latest."""
        until = time.monotonic() + deadline_s
        try:
            with self._http.stream("POST", path, content=content, timeout=deadline_s) as answer:
                body = bytearray()
                for chunk in answer.iter_bytes():
                    body += chunk
                    if time.monotonic() > until:
                        raise httpx.ReadTimeout("the answer trickles")
                return Answer(answer.status_code, answer.headers, bytes(body))
        except httpx.HTTPError as error:
            raise _fault(path, error, deadline_s) from None

    async def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncHttp:
    """Posts on the running event loop."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, trust_env=False, limits=_limits(), cookies=_no_cookies()
        )

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once; see Transport."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._http.post(path, content=content, timeout=deadline_s)
        except (TimeoutError, httpx.HTTPError) as error:
            raise _fault(path, error, deadline_s) from None
        return Answer(answer.status_code, answer.headers, answer.content)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_S)


def _no_cookies() -> CookieJar:
    # Cookies go by host and not by port: two services on loopback would share them.
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _fault(path: str, error: Exception, deadline_s: float) -> TransportFault:
    # A connection that is not accepted in time is nobody there, like one that is refused.
    if isinstance(error, TimeoutError | httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return TransportFault(Kind.TIMEOUT, f"no answer from {path} within {deadline_s} s")
    return TransportFault(Kind.UNREACHABLE, f"{path}: {type(error).__name__} {error}")
