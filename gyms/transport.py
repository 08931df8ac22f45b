"""One HTTP post with a deadline, blocking or on an event loop; the same errors either way.

No cookie is kept, no proxy is taken from the environment, nothing is sent twice.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpcore
import httpx

from gyms.base import Kind

KEPT_CONNECTIONS = 64
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


class BlockingHttp:
    """Posts in the calling thread; its coroutines never suspend. Thread-safe."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = require_url(url)
        self._headers: list[tuple[bytes | str, bytes | str]] = [
            *headers.items(),
            ("host", self._url.partition("://")[2]),
            ("content-type", "application/json"),
        ]
        self._backend = _DeadlineBackend()
        # Below httpx, which cannot bound a whole exchange, only each read of it.
        self._pool = httpcore.ConnectionPool(
            max_connections=None,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=self._backend,
        )

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once; see Transport."""
        try:
            with self._backend.deadline(deadline_s):
                timeouts = dict.fromkeys(("connect", "read", "write", "pool"), deadline_s)
                answer = self._pool.request(
                    "POST",
                    f"{self._url}{path}",
                    headers=self._headers,
                    content=content,
                    extensions={"timeout": timeouts},
                )
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, RuntimeError) as error:
            raise _fault(path, error, deadline_s) from None
        return Answer(answer.status, httpx.Headers(answer.headers), answer.content)

    async def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class _DeadlineBackend(httpcore.SyncBackend):
    """Hands out streams whose reads and writes end at the calling thread's deadline."""

    def __init__(self) -> None:
        self._local = threading.local()

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Bound everything that this thread does on its streams until the block ends."""
        self._local.until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._local.until = None

    def left(self, timeout: float | None) -> float | None:
        """Return the smaller of a time-out and what is left; raises ReadTimeout when nothing is."""
        until = getattr(self._local, "until", None)
        if until is None:
            return timeout
        seconds = until - time.monotonic()
        if seconds <= 0:
            raise httpcore.ReadTimeout("the deadline of the whole exchange has passed")
        return seconds if timeout is None else min(timeout, seconds)

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        """Connect."""
        return _DeadlineStream(super().connect_tcp(*arguments, **options), self)


class _DeadlineStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, backend: _DeadlineBackend) -> None:
        self._stream = stream
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._backend.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class AsyncHttp:
    """Posts on the running event loop."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = httpx.AsyncClient(
            base_url=require_url(url),
            headers=headers,
            trust_env=False,
            cookies=_no_cookies(),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S
            ),
        )

    async def post(self, path: str, content: bytes, deadline_s: float) -> Answer:
        """Post once; see Transport."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._http.post(path, content=content, timeout=deadline_s)
        except (TimeoutError, httpx.HTTPError, RuntimeError) as error:
            raise _fault(path, error, deadline_s) from None
        return Answer(answer.status_code, answer.headers, answer.content)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _no_cookies() -> CookieJar:
    # Cookies go by host and not by port: two services on loopback would share them.
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _fault(path: str, error: Exception, deadline_s: float) -> TransportFault:
    # A connection that is not accepted in time is nobody there, like one that is refused.
    connecting = isinstance(error, httpx.ConnectTimeout | httpcore.ConnectTimeout)
    if isinstance(error, TimeoutError | httpx.TimeoutException | httpcore.TimeoutException) and not connecting:
        return TransportFault(Kind.TIMEOUT, f"no answer from {path} within {deadline_s} s")
    # RuntimeError: a client that was closed, or that belongs to an event loop that has ended.
    return TransportFault(Kind.UNREACHABLE, f"{path}: {type(error).__name__} {error}")
