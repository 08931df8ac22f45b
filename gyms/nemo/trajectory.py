"""Reading an OpenAI Responses trajectory: what the model called, what it was shown, what it said last."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrajectoryCall:
    """One function call of the trajectory."""

    tool: str
    arguments: str
    """JSON text as the model wrote it."""
    shown: str | None
    """What the trajectory says the model was shown; None if it holds no output for the call."""

    @property
    def reached_the_server(self) -> bool:
        """Whether upstream's agent sent it: text it cannot decode it answers itself."""
        try:
            json.loads(self.arguments)
        except (ValueError, TypeError, RecursionError):
            return False
        return True


@dataclass(frozen=True)
class Trajectory:
    """The parts of a trajectory that a verdict needs."""

    calls: tuple[TrajectoryCall, ...]
    answer: str | None
    """Text of the assistant message after the last call; None if there is none."""
    truncated: bool
    """The model's output was cut off."""


def read_trajectory(response: Mapping[str, Any]) -> Trajectory:
    """Read a validated Responses object given as plain data."""
    output: list[Mapping[str, Any]] = response["output"]
    shown = {item["call_id"]: item["output"] for item in output if item.get("type") == "function_call_output"}
    calls, answer = [], None
    for item in output:
        if item.get("type") == "function_call":
            calls.append(TrajectoryCall(item["name"], item["arguments"], shown.get(item["call_id"])))
            answer = None
        elif item.get("type") == "message" and item.get("role") == "assistant":
            answer = _text(item["content"])
    return Trajectory(tuple(calls), answer, truncated=response.get("incomplete_details") is not None)


def _text(content: str | Iterable[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)
