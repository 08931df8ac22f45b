"""HTTP on an event loop: one post is one exchange, whatever the other side sends, and nothing is sent twice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gymqual.gyms.async_http import AsyncHttp
from gymqual.gyms.base import Kind
from gymqual.gyms.transport import Answer, TransportFault
from gymqual.harness.plugin.registry import explain

pytestmark = pytest.mark.self_test

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-who: me\r\n\r\n{}"
Seen = tuple[object, ...]


class Peer:
    """Answers the n-th request, over all its connections, with the n-th of these bytes; None ends the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)
        self.requests = 0
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        while self._answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.requests += 1
            answer = self._answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
            await writer.drain()
        writer.close()


def _with(peer: Peer, use: Callable[[AsyncHttp], Awaitable[Seen]]) -> Seen:
    async def run() -> Seen:
        async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
            http = AsyncHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"x-secret": "s"})
            try:
                return await use(http)
            finally:
                await http.close()

    return asyncio.run(run())


async def _posted(http: AsyncHttp, deadline_s: float = 10.0) -> object:
    try:
        answer = await http.post("/x", b'{"a":1}', deadline_s)
    except TransportFault as fault:
        return fault.kind
    # Time for what follows the answer to come.
    await asyncio.sleep(0.05)
    return _told(answer)


def _told(answer: Answer) -> tuple[int, bytes, str | None]:
    return answer.status, answer.content, answer.headers.get("X-Who")


WELL = (200, b"{}", "me")
CASES: dict[str, tuple[tuple[bytes | None, ...], tuple[object, ...], int]] = {
    "kept connection": ((OK, OK), (WELL, WELL), 1),
    "chunks": (
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-who: me\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", OK),
        (WELL, WELL),
        1,
    ),
    "until the end": ((b"HTTP/1.1 200 OK\r\nx-who: me\r\n\r\n{}", OK), (Kind.TIMEOUT,), 1),
    "asked to close": ((OK.replace(b"x-who", b"connection: close\r\nx-who"), OK), (WELL, WELL), 2),
    "informational first": ((b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK,), (WELL,), 1),
    "no answer": ((None, OK), (Kind.UNREACHABLE, WELL), 2),
    "half an answer": ((OK[:-1], OK), (Kind.TIMEOUT,), 1),
    "no HTTP": ((b"hello\r\n\r\n",), (Kind.UNREACHABLE,), 1),
    # What was not asked for must never be read as the answer to the next post.
    "two answers": ((OK + OK.replace(b"{}", b"[]"), OK), (WELL, WELL), 2),
}
"""By case: the peer's answers, what each post gives, and how many connections were made."""


@pytest.mark.parametrize("case", CASES)
def test_a_post_is_one_exchange(case: str) -> None:
    """Each post MUST be one request and give its own answer or a typed fault, and an odd end ends the connection."""
    answers, expected, connections = CASES[case]
    peer = Peer(*answers)

    async def use(http: AsyncHttp) -> Seen:
        timed = Kind.TIMEOUT in expected
        return tuple([await _posted(http, 0.5 if timed else 10.0) for _ in expected])

    seen = _with(peer, use)
    assert (seen, peer.requests, peer.connections) == (expected, len(expected), connections), explain(
        subject=f"{case}: what the posts gave, requests that came, connections",
        expected=(expected, len(expected), connections),
        got=(seen, peer.requests, peer.connections),
        cause="an answer is read for another request, a post is repeated, or a connection is kept that should not be",
    )


def test_posts_at_once_share_no_connection() -> None:
    """As many posts as are made at once MUST each have a connection, which later ones use again."""
    peer = Peer(*[OK] * 64)

    async def use(http: AsyncHttp) -> Seen:
        first = await asyncio.gather(*(_posted(http) for _ in range(16)))
        made = peer.connections
        second = await asyncio.gather(*(_posted(http) for _ in range(16)))
        return set(first), set(second), made, peer.connections

    seen = _with(peer, use)
    assert seen == ({WELL}, {WELL}, 16, 16), explain(
        subject="answers of 16 posts and of 16 more, and connections after each",
        expected=({WELL}, {WELL}, 16, 16),
        got=seen,
        cause="connections are dropped between posts, or two posts wait for one",
    )


def test_a_post_that_was_given_up_leaves_no_answer_behind() -> None:
    """After a cancelled post the next MUST get its own answer, on a connection of its own."""
    peer = Peer(b"", OK)

    async def use(http: AsyncHttp) -> Seen:
        given_up = asyncio.create_task(_posted(http))
        while not peer.requests:
            await asyncio.sleep(0.01)
        given_up.cancel()
        ended = await asyncio.gather(given_up, return_exceptions=True)
        return type(ended[0]), await _posted(http), peer.connections

    seen = _with(peer, use)
    assert seen == (asyncio.CancelledError, WELL, 2), f"the connection of a cancelled post was used again: {seen}"


def test_a_closed_client_and_one_of_another_loop_are_unreachable() -> None:
    """A client that was closed, or whose event loop is another one, MUST make no request."""
    peer = Peer(OK, OK)

    async def use(http: AsyncHttp) -> Seen:
        first = await _posted(http)
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(_posted(http)))
        await http.close()
        return first, elsewhere, await _posted(http)

    seen = _with(peer, use)
    assert (seen, peer.requests) == ((WELL, Kind.UNREACHABLE, Kind.UNREACHABLE), 1), f"a request was made: {seen}"
