"""A scripted OpenAI-compatible server on loopback: what a model says, and every way a model server can break."""

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from gymqual.gyms.base import Script, ToolCall
from gymqual.harness.process.server import LOOPBACK

OVERFLOW = "This model's maximum context length is 512 tokens. However, you requested 600 tokens."
"""vLLM's words."""
DRIP_S = 0.1


class Break(StrEnum):
    """How a request can fail."""

    HTTP_400 = "http 400"
    HTTP_429 = "http 429"
    HTTP_500 = "http 500"
    OVERFLOW = "overflow"
    CUT = "cut stream"
    BROKEN_JSON = "broken json"
    NO_CHOICE = "no choice"
    """A whole stream in which nothing is said."""
    HANG = "hang"
    """The request is read and never answered."""
    ENDLESS = "endless"
    """The answer goes on and on."""


@dataclass(frozen=True)
class Says:
    """One message of the scripted model."""

    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    """Empty: ``tool_calls`` if there are any, else ``stop``."""
    tokens: int = 8
    """Sampled tokens that the server reports."""


Reply = Says | Break


def says(script: Script) -> list[Reply]:
    """Return a scripted episode as a model's messages, one call each."""
    return [*(Says(calls=(call,)) for call in script.calls), Says(script.answer)]


@dataclass
class ModelServer:
    """``with ModelServer({record_id: replies}) as server: server.url``; the last reply of a record repeats itself."""

    replies: Mapping[str, Sequence[Reply]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Every request body, with the API key and session header that came with it."""

    def __enter__(self) -> Self:
        server = self

        class Handler(_Handler):
            model = server

        self._http = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._http.daemon_threads = True
        self.closing = threading.Event()
        threading.Thread(target=self._http.serve_forever, name="scripted-model", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Base URL, as clients of OpenAI want it."""
        return f"http://{LOOPBACK}:{self._http.server_address[1]}/v1"

    def reply_to(self, body: Mapping[str, Any]) -> Reply:
        """Return what is said at this point of the conversation."""
        question = next(message["content"] for message in body["messages"] if message["role"] == "user")
        found = re.search(r"L-[0-9]{4}", question if isinstance(question, str) else json.dumps(question))
        replies = self.replies[found[0] if found else ""]
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return replies[min(turn, len(replies) - 1)]


class _Handler(BaseHTTPRequestHandler):
    model: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: requests are kept as data."""

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen = {"authorization": self.headers["authorization"], "session": self.headers.get("x-session-id")}
        self.model.requests.append({**body, "headers": seen})
        try:
            self._carry_out(self.model.reply_to(body))
        except ConnectionError:
            # Whoever asked has left; an endless answer ends that way.
            self.close_connection = True

    def _carry_out(self, reply: Reply) -> None:
        if isinstance(reply, Says):
            self._stream([*_chunks(reply), "[DONE]"])
        elif reply is Break.HANG:
            self.model.closing.wait(60)
        elif reply is Break.ENDLESS:
            self._begin()
            while not self.model.closing.wait(DRIP_S):
                self._event(_chunk({"content": "und "}))
        elif reply is Break.OVERFLOW:
            self._answer(400, {"error": {"message": OVERFLOW, "type": "BadRequestError", "code": 400}})
        elif reply.startswith("http"):
            self._answer(int(reply.removeprefix("http ")), {"error": {"message": "scripted", "type": "scripted"}})
        elif reply is Break.CUT:
            self._stream([_chunk({"role": "assistant", "content": "4"})])
        elif reply is Break.BROKEN_JSON:
            self._stream(['{"id": "x", "choices": [{"delta"', "[DONE]"])
        else:
            self._stream([_chunk(None), "[DONE]"])

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _stream(self, events: Sequence[str]) -> None:
        self._begin()
        for event in events:
            self._event(event)
        self.close_connection = True


def _chunks(reply: Says) -> list[str]:
    calls = [
        {
            "index": number,
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments},
        }
        for number, call in enumerate(reply.calls)
    ]
    delta = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    reason = reply.finish_reason or ("tool_calls" if calls else "stop")
    usage = {"prompt_tokens": 40, "completion_tokens": reply.tokens, "total_tokens": 40 + reply.tokens}
    return [_chunk(delta), _chunk({}, reason), _chunk(None, usage=usage)]


def _chunk(delta: dict[str, Any] | None, reason: str | None = None, usage: dict[str, int] | None = None) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    header = {"id": "scripted", "object": "chat.completion.chunk", "created": int(time.time()), "model": "scripted"}
    return json.dumps({**header, "choices": choices, "usage": usage}, ensure_ascii=False)
