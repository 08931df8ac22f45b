"""The transport that posts in the calling thread; its deadline bounds the whole exchange."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from gymqual.gyms.transport import KEEP_ALIVE_S, Answer, fault_of, require_url

KEPT_CONNECTIONS = 64


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
            raise fault_of(path, error, deadline_s) from None
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
