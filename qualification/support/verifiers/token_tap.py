"""A tap on the wire to a token server: it keeps every exchange, and can spoil what the server answers."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import httpx

from gymqual.harness.process.server import LOOPBACK

GENERATE = "/inference/v1/generate"
LIMIT_S = 120.0
Spoil = Callable[[dict[str, Any]], object]
"""Changes the ``choice`` of an answer in place."""


@dataclass(frozen=True)
class Exchange:
    """One request to the token route and what came back."""

    session: str
    """Trace id of the rollout."""
    asked: dict[str, Any]
    answered: dict[str, Any]


@dataclass
class TokenTap:
    """``with TokenTap(url) as tap: tap.url``; sessions take the spoils in the order in which they first ask."""

    target: str
    """Base URL of the server."""
    spoils: tuple[Spoil | None, ...] = ()
    exchanges: list[Exchange] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        tap = self

        class Handler(_Handler):
            pass

        Handler.tap = tap
        self._http = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._http.daemon_threads = True
        self._lock = threading.Lock()
        threading.Thread(target=self._http.serve_forever, name="token-tap", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Base URL, as clients of OpenAI want it."""
        return f"http://{LOOPBACK}:{self._http.server_address[1]}/v1"

    def pass_on(self, path: str, session: str, asked: dict[str, Any] | None) -> tuple[int, Any]:
        """Return the server's (status, answer), spoilt if its rollout is to be."""
        with httpx.Client(trust_env=False, timeout=LIMIT_S) as client:
            url = f"{self.target}{path}"
            answer = client.get(url) if asked is None else client.post(url, json=asked)
        body = answer.json()
        if path == GENERATE and asked is not None and answer.status_code == 200:
            with self._lock:
                if session not in self.sessions:
                    self.sessions.append(session)
                place = self.sessions.index(session)
            self.exchanges.append(Exchange(session, asked, json.loads(json.dumps(body))))
            spoil = self.spoils[place] if place < len(self.spoils) else None
            if spoil is not None:
                spoil(body["choices"][0])
        return answer.status_code, body


class _Handler(BaseHTTPRequestHandler):
    tap: TokenTap

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: exchanges are kept as data."""

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _pass_on(self, asked: dict[str, Any] | None) -> None:
        status, body = self.tap.pass_on(self.path, self.headers.get("x-session-id", ""), asked)
        # NaN is no JSON, and servers written in Python write it all the same.
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _first(choice: dict[str, Any], **changed: Any) -> None:
    choice["logprobs"]["content"][0].update(changed)


SPOILS: dict[str, Spoil | None] = {
    "healthy": None,
    "missing": lambda choice: choice.pop("logprobs"),
    "short": lambda choice: choice["logprobs"]["content"].pop(),
    "NaN": lambda choice: _first(choice, logprob=float("nan")),
    "positive": lambda choice: _first(choice, logprob=0.4),
    "of another token": lambda choice: _first(choice, token="token_id:1"),
}
"""What becomes of the log-probabilities that a server returns."""
