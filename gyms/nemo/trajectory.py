"""Reading an OpenAI Responses trajectory: what the model called, what it was shown, what it said last."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gymqual.gyms.german.tools import Call


@dataclass(frozen=True)
class TrajectoryCall:
    """One function call of the trajectory."""

    call: Call
    """As the model wrote it."""
    shown: str | None
    """What the trajectory says the model was shown; None if it holds no output for the call."""


@dataclass(frozen=True)
class Trajectory:
    """The parts of a trajectory that a verdict needs."""

    calls: tuple[TrajectoryCall, ...]
    answer: str | None
    """Text of the assistant message after the last call and its output; None if there is none."""
    truncated: bool
    """The model's output was cut off."""


def read_trajectory(response: Mapping[str, Any]) -> Trajectory:
    """Read a validated Responses object given as plain data."""
    calls: list[TrajectoryCall] = []
    unanswered: list[tuple[str, int]] = []
    answer = None
    for item in response["output"]:
        kind = item.get("type")
        if kind == "function_call":
            unanswered.append((item["call_id"], len(calls)))
            calls.append(TrajectoryCall(Call(item["name"], item["arguments"]), None))
            answer = None
        elif kind == "function_call_output":
            # In order, since some chat parsers keep ids that the model wrote, and those repeat.
            number = next((n for call_id, n in unanswered if call_id == item["call_id"]), None)
            if number is not None:
                unanswered.remove((item["call_id"], number))
                calls[number] = TrajectoryCall(calls[number].call, item["output"])
            # What was said beside a call, before its output was seen, is no final answer.
            answer = None
        elif kind == "message" and item.get("role") == "assistant":
            answer = _text(item["content"])
    return Trajectory(tuple(calls), answer, truncated=response.get("incomplete_details") is not None)


def _text(content: str | Iterable[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)
