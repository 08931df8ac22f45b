"""What a rollout was, read from its trace as JSON: the transcript, what the tools served, and the core's verdict.

Free of upstream, so that environment, classifier and any later reader judge the same bytes in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymqual.gyms.german import verifier
from gymqual.gyms.german.episode import MAX_CALLS, replay
from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.german.tools import ArgumentError, Call, decode_arguments

Trace = Mapping[str, Any]
"""One trace as upstream dumps it: ``model_dump(mode="json", exclude_none=True)``, or of ``traces.jsonl``."""


@dataclass(frozen=True)
class Written:
    """One tool call as the model wrote it."""

    call: Call
    shown: str | None
    """What the model was shown of it; None if no later request carried that."""


@dataclass(frozen=True)
class Transcript:
    """One conversation, from its first message to the last one that was sampled."""

    calls: tuple[Written, ...]
    answer: str | None
    """Text of the final message; None if it makes a call, or if there is none."""
    last_turn: tuple[Call, ...]
    """Calls of the final message."""
    turns: int
    """Sampled messages."""
    writable: bool
    """The last sampled message can be sent on: its calls are well-formed and all of it is UTF-8."""


def read_transcript(trace: Trace) -> Transcript:
    """Read the branch that ends with the last sampled message."""
    nodes: Sequence[Mapping[str, Any]] = trace.get("nodes", [])
    sampled = [number for number, node in enumerate(nodes) if node.get("sampled")]
    messages = _branch(nodes, sampled[-1]) if sampled else []
    calls: list[Written] = []
    for position, message in enumerate(messages):
        if message["role"] == "assistant":
            shown = _results(messages[position + 1 :])
            calls += [Written(_call(each), shown.get(each["id"])) for each in message.get("tool_calls") or []]
    last = messages[-1] if messages else {}
    last_turn = tuple(_call(each) for each in last.get("tool_calls") or [])
    text = last.get("content")
    writable = all(is_servable(call) for call in last_turn) and _is_utf8(text or "")
    return Transcript(tuple(calls), None if last_turn else text, last_turn, len(sampled), writable)


def is_served(number: int, call: Call) -> bool:
    """Whether call ``number`` of an episode, from 0, is one for the tool server."""
    return number < MAX_CALLS and is_servable(call)


def is_servable(call: Call) -> bool:
    """Whether a call can reach the tool server as it was written.

    Upstream's loop would answer the others in words of its own or repair them: arguments that are no JSON object with
    the one text parameter, name a key twice, or hold half a character, which no wire can carry.
    """
    try:
        return _is_utf8(call.arguments + decode_arguments(call.tool, call.arguments))
    except ArgumentError:
        return False


def core_answer(task_id: str, calls: Sequence[Call]) -> str | None:
    """Return what the core shows of the last of these calls if the tool server is not to see it, else None."""
    if is_served(len(calls) - 1, calls[-1]):
        return None
    return replay(find_task(task_id), calls, None)[0][-1].text


def disagreement(task_id: str, transcript: Transcript, served: Sequence[Mapping[str, str]]) -> str | None:
    """Return how what the model was shown, or what was served, differs from the core's replay of its calls, or None."""
    written = [each.call for each in transcript.calls]
    replayed = [observation.text for observation in replay(find_task(task_id), written, None)[0]]
    for each, text in zip(transcript.calls, replayed, strict=True):
        if each.shown is not None and each.shown != text:
            return f"the model was shown {each.shown[:80]!r}, the replay shows {text[:80]!r}"
    texts = [each["text"] for each in served]
    owed = [text for number, text in enumerate(replayed) if is_served(number, written[number])]
    if texts != owed[: len(texts)]:
        return f"the tool server showed {texts}, the replay shows {owed}"[:300]
    missing = len(_shown(transcript)) - len(texts)
    return f"the model was shown {missing} observations that the tool server did not serve" if missing > 0 else None


def unserved(transcript: Transcript, served: Sequence[Mapping[str, str]]) -> int:
    """Return how many calls the tool server owes an answer."""
    return sum(is_served(number, each.call) for number, each in enumerate(transcript.calls)) - len(served)


def _shown(transcript: Transcript) -> list[Written]:
    calls = enumerate(transcript.calls)
    return [each for number, each in calls if each.shown is not None and is_served(number, each.call)]


def episode_of(task_id: str, transcript: Transcript, truncated: bool) -> dict[str, Any]:
    """Return what a verdict needs, as JSON data to be kept in ``trace.info``."""
    return {
        "task_id": task_id,
        "calls": [[written.call.tool, written.call.arguments] for written in transcript.calls],
        "answer": transcript.answer,
        "truncated": truncated,
    }


def verdict_of(episode: Mapping[str, Any]) -> verifier.Verdict:
    """Judge a kept episode by the core; raises KeyError, ValueError or TypeError if it is none."""
    calls = [Call(tool, arguments) for tool, arguments in episode["calls"]]
    return replay(find_task(episode["task_id"]), calls, episode.get("answer"), episode["truncated"])[1]


def _branch(nodes: Sequence[Mapping[str, Any]], leaf: int) -> list[Mapping[str, Any]]:
    path: list[Mapping[str, Any]] = []
    number: int | None = leaf
    while number is not None:
        path.append(nodes[number]["message"])
        number = nodes[number].get("parent")
    return path[::-1]


def _results(following: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tool messages of one turn by call id; an id may come again in a later turn."""
    shown: dict[str, str] = {}
    for message in following:
        if message["role"] == "assistant":
            break
        if message["role"] == "tool":
            shown.setdefault(message["tool_call_id"], _text(message["content"]))
    return shown


def _call(tool_call: Mapping[str, Any]) -> Call:
    return Call(str(tool_call.get("name", "")), str(tool_call.get("arguments", "")))


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
