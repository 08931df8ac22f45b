"""Raw HTTP against a NeMo resources server: what upstream's agent and our bridge put on the wire.

No client of ours and no SDK stands between a check and the bytes.
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import httpx

from gymqual.gyms.base import Replay, Script, ToolCall
from gymqual.gyms.nemo import rows
from gymqual.harness.stacks.services import GymService

DEADLINE_S = 30.0


@dataclass
class Wire:
    """One HTTP client with cookies of its own; keeps every byte that was served to it."""

    service: GymService
    http: httpx.Client = field(init=False)
    served: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = httpx.Client(
            base_url=self.service.server.url,
            trust_env=False,
            timeout=DEADLINE_S,
            event_hooks={"response": [self._keep]},
        )

    def _keep(self, response: httpx.Response) -> None:
        response.read()
        headers = b"\n".join(name + b": " + value for name, value in response.headers.raw)
        self.served.append(headers + b"\n\n" + response.content)

    def bridge(self, route: str, **body: Any) -> httpx.Response:
        """Post to a bridge route with the secret."""
        return self.http.post(f"/bridge/{route}", json=body, headers=self.service.bridge_headers)

    def state(self) -> dict[str, int]:
        """Return the server's session counters."""
        return self.bridge("state").json()

    def rollout(self, task_id: str) -> "NativeRollout":
        """Seed a session on the native route, as an environment server does, and return its rollout."""
        rollout = NativeRollout(Wire(self.service), task_id)
        rollout.seed().raise_for_status()
        return rollout


@dataclass
class NativeRollout:
    """One rollout as upstream's agent drives it: a cookie, tool posts, and a trajectory for ``/verify``."""

    wire: Wire
    task_id: str
    session_id: str = field(default_factory=lambda: secrets.token_hex(16))
    output: list[dict[str, Any]] = field(default_factory=list)

    @property
    def core(self) -> str:
        """Core digest that the rollout's dataset row was made for."""
        return self.wire.service.identity.core

    def seed_body(self, core: str | None = None, attempt: int = 0) -> dict[str, Any]:
        """Return the typed seed body."""
        body = rows.typed_seed(self.task_id, core or self.core, self.session_id)
        body["episode_id"]["attempt"] = attempt
        return body

    def seed(self) -> httpx.Response:
        """Open the session under a caller-assigned id."""
        return self.wire.http.post("/seed_session", json=self.seed_body())

    def call(self, call: ToolCall, call_id: str | None = None, saying: str | None = None) -> httpx.Response:
        """Post one call to the route of the tool's name, body as written, and add it to the trajectory.

        ``call_id`` is an id that the model chose, ``saying`` a message in the same turn.
        """
        response = self.wire.http.post(f"/{call.tool}", content=call.arguments.encode())
        number = call_id or f"call_{len(self.output)}"
        self.output.append({"type": "function_call", "call_id": number, "name": call.tool, "arguments": call.arguments})
        if saying is not None:
            self.output.append(message(saying))
        self.output.append({"type": "function_call_output", "call_id": number, "output": response.text})
        return response

    def verify(self, answer: str | None, truncated: bool = False) -> httpx.Response:
        """Post the trajectory with its final message, as upstream's agent does."""
        body = self.verify_body(answer)
        if truncated:
            body["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
        return self.wire.http.post("/verify", json=body)

    def verify_body(self, answer: str | None) -> dict[str, Any]:
        """Return upstream's verify body: the dataset row and the Responses object."""
        response = {
            "id": "response",
            "created_at": 0,
            "model": "scripted",
            "object": "response",
            "output": self.output + ([message(answer)] if answer is not None else []),
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
        return {**rows.row(self.task_id, self.core), "response": response}

    def close(self) -> httpx.Response:
        """Close the session by its id."""
        named = {key: self.seed_body()[key] for key in ("resources_session_id", "episode_id")}
        return self.wire.http.post("/close_session", json=named)

    def play(self, script: Script) -> dict[str, Any]:
        """Play a scripted episode to its verdict; return the verify response as JSON."""
        for call in script.calls:
            if decodes(call):
                self.call(call)
            else:
                number = f"call_{len(self.output)}"
                self.output.append(
                    {"type": "function_call", "call_id": number, "name": call.tool, "arguments": call.arguments}
                )
        return self.verify(script.answer).json()

    def outcome_of(self, script: Script) -> dict[str, Any]:
        """Play a scripted episode; return what was shown and what it was worth."""
        verdict = self.play(script)
        shown = [item["output"] for item in self.output if item["type"] == "function_call_output"]
        keys = ("reward", "strict", "outcome", "lookup", "calculation", "answer", "errors")
        return {"shown": shown, **{key: verdict.get(key) for key in keys}}


def message(text: str) -> dict[str, Any]:
    """Return an assistant message of a trajectory."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "message", "role": "assistant", "status": "completed", "content": content}


def replayed(replay: Replay, script: Script) -> dict[str, Any]:
    """Return what ``outcome_of`` must return, by the independent replay."""
    shown = [seen.text for seen, call in zip(replay.observations, script.calls, strict=True) if decodes(call)]
    verdict = replay.verdict
    return {
        "shown": shown,
        "reward": verdict.reward,
        "strict": verdict.strict,
        "outcome": verdict.outcome,
        **verdict.parts,
    }


def decodes(call: ToolCall) -> bool:
    """Whether upstream's agent sends the call; what it cannot decode it answers itself."""
    try:
        json.loads(call.arguments)
    except ValueError:
        return False
    return True
