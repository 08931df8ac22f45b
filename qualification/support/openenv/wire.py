"""A raw WebSocket client of the OpenEnv server: frames as upstream's protocol has them, and every byte kept."""

import json
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gymqual.gyms.base import Script, ToolCall
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.stacks.services import GymService

ANSWER_LIMIT_S = 30.0


class Wire:
    """One server as a user of upstream's routes sees it."""

    def __init__(self, service: GymService, port: int | None = None) -> None:
        """``port`` is a proxy's, if there is one in between."""
        self.service = service
        self.address = f"127.0.0.1:{port or service.server.port}"
        self.served: list[bytes] = []
        """All bytes that came back, of HTTP answers with their headers."""
        self.http = httpx.Client(
            base_url=f"http://{self.address}",
            trust_env=False,
            timeout=ANSWER_LIMIT_S,
            event_hooks={"response": [self._keep]},
        )
        self._sockets: list[Socket] = []

    def _keep(self, answer: httpx.Response) -> None:
        answer.read()
        self.served += [repr(answer.headers).encode(), answer.content]

    def socket(self, query: str = "") -> "Socket":
        """Open a WebSocket session."""
        self._sockets.append(Socket(self, query))
        return self._sockets[-1]

    def begin(self, task_id: str) -> "Socket":
        """Open a session and reset it to a task."""
        opened = self.socket()
        opened.reset(task_id)
        return opened

    def bridge(self, route: str, **body: Any) -> dict[str, Any]:
        """Post to a guarded route, for the owner's eyes; what comes back is not kept."""
        url = f"http://127.0.0.1:{self.service.server.port}/bridge/{route}"
        headers = self.service.bridge_headers
        answer = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=ANSWER_LIMIT_S)
        return answer.raise_for_status().json()

    def state(self) -> dict[str, Any]:
        """Return the server's counters."""
        return self.bridge("state")

    def close(self) -> None:
        """Close every socket."""
        self.http.close()
        for each in self._sockets:
            each.close()


class Socket:
    """One WebSocket session. Answers are the frames' objects; the end of the session is a ``closed`` object."""

    def __init__(self, wire: Wire, query: str = "") -> None:
        self._wire = wire
        self._calls = 0
        self.episode_id = ""
        self._stack = ExitStack()
        opening = connect(
            f"ws://{wire.address}/ws{query}", proxy=None, max_size=None, ping_interval=None, close_timeout=2
        )
        self.connection: ClientConnection = self._stack.enter_context(opening)

    def send(self, frame: Any) -> dict[str, Any]:
        """Send bytes, text, or an object as JSON, and return the answering object."""
        try:
            # A server that is full says so and closes; its word may still be there to be read.
            with suppress(ConnectionClosed):
                self.connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
            return self.receive()
        except ConnectionClosed as closed:
            return {"type": "closed", "code": closed.rcvd.code if closed.rcvd else None}

    def receive(self) -> dict[str, Any]:
        """Return the next object."""
        raw = self.connection.recv(timeout=ANSWER_LIMIT_S)
        content = raw.encode() if isinstance(raw, str) else raw
        self._wire.served.append(content)
        return json.loads(content)

    def reset(self, task_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """Begin an episode under a fresh id, unless one is given."""
        self._calls = 0
        data = {"task_id": task_id, "episode_id": secrets.token_hex(16), **fields}
        answer = self.send({"type": "reset", "data": data})
        if answer["type"] == "observation":
            self.episode_id = answer["data"]["observation"]["reply_to"]
        return answer

    def call(self, call: ToolCall, call_id: str | None = None) -> dict[str, Any]:
        """Make one call as a model wrote it."""
        return self.send(self.call_frame(call, call_id))

    def call_frame(self, call: ToolCall, call_id: str | None = None) -> dict[str, Any]:
        """Return the frame of one call."""
        self._calls += 1
        data = {"tool": call.tool, "arguments": call.arguments, "call_id": call_id or str(self._calls)}
        return {"type": "step", "data": data}

    def verify(self, answer: str | None, truncated: bool = False, secret: str | None = None) -> dict[str, Any]:
        """End the episode, with the server's secret unless another is given."""
        ending = {"secret": self._wire.service.secret if secret is None else secret, "answer": answer}
        return self.send({"type": "step", "data": {"verification": {**ending, "truncated": truncated}, "call_id": "v"}})

    def play(self, script: Script) -> list[dict[str, Any]]:
        """Play a scripted episode and return all answers, the verification's last."""
        return [*(self.call(call) for call in script.calls), self.verify(script.answer)]

    def state(self) -> dict[str, Any]:
        """Ask for the session's state."""
        return self.send({"type": "state"}).get("data", {})

    def close(self) -> None:
        """Close as the protocol asks for. Idempotent."""
        self._stack.close()

    def abort(self) -> None:
        """Reset the TCP connection, as a client that crashed may."""
        with suppress(OSError):
            self.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.socket.close()


def observed(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Return (text, is_error, reward, done) of an answer to a step, or (type, code, None, None) of anything else."""
    data = answer.get("data", {})
    if answer["type"] != "observation":
        return answer["type"], data.get("code", answer.get("code")), None, None
    observation = data["observation"]
    return observation["text"], observation["is_error"], data["reward"], data["done"]


def outcome(state: dict[str, Any]) -> tuple[Any, ...]:
    """Return (reward, done, outcome, step count) of a state."""
    return state.get("reward"), state.get("done"), state.get("outcome"), state.get("step_count")


def kind(answer: dict[str, Any]) -> str:
    """Return the kind of infrastructure failure that an answer names, or upstream's code, or the answer's type."""
    data = answer.get("data", {})
    try:
        return json.loads(data["message"])["kind"]
    except (KeyError, ValueError, TypeError):
        return data.get("code", answer["type"])


def transcript(session: Socket, orders: GermanOrders) -> list[Any]:
    """Return everything but ids that a few episodes show in a session, their state at the end included."""
    told = []
    for task in ("v1/dev/0/0", "v1/train/43/1", "extended/dev/0/0"):
        for script in orders.scripts(task).values():
            told.append(session.reset(task)["data"]["observation"]["messages"])
            told += [observed(answer) for answer in session.play(script)]
            told.append({**session.state(), "episode_id": None})
    return told


@contextmanager
def wired(service: GymService, port: int | None = None) -> Iterator[Wire]:
    """A wire that is closed at the end."""
    wire = Wire(service, port)
    try:
        yield wire
    finally:
        wire.close()
