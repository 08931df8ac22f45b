"""Every scripted episode and misbehaviour once, driven by whatever carries it: raw wire, client or core."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gymqual.gyms.base import Gym, InfrastructureError, Replay, Script, TaskSet, ToolCall, Verdict
from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.german_orders import GermanOrders

Result = TypeVar("Result")

HOSTILE_BODIES: dict[str, tuple[str, bytes]] = {
    "no JSON": ("lookup", b"{not json"),
    "truncated": ("lookup", b'{"record_id": "L-1'),
    "trailing comma": ("lookup", b'{"record_id": "L-1000",}'),
    "single quotes": ("lookup", b"{'record_id': 'L-1000'}"),
    "NaN": ("calculator", b'{"expression": NaN}'),
    "duplicate keys": ("lookup", b'{"record_id": "L-1000", "record_id": "L-1001"}'),
    "byte order mark": ("lookup", b'\xef\xbb\xbf{"record_id": "L-1000"}'),
    "not UTF-8": ("lookup", b'{"record_id": "L-\xff"}'),
    "empty body": ("lookup", b""),
    "null": ("lookup", b"null"),
    "list": ("lookup", b'["L-1000"]'),
    "number": ("calculator", b"7"),
    "text": ("calculator", b'"3*4"'),
    "no arguments": ("lookup", b"{}"),
    "wrong key": ("lookup", b'{"id": "L-1000"}'),
    "extra key": ("calculator", b'{"expression": "3*4", "x": 1}'),
    "wrong type": ("lookup", b'{"record_id": 1000}'),
    "unknown record": ("lookup", b'{"record_id": "../answer"}'),
    "lone surrogate": ("lookup", b'{"record_id": "\\ud800"}'),
    "two objects": ("calculator", b'{"expression": "1"}{"expression": "2"}'),
    "one megabyte": ("calculator", b'{"expression": "' + b"1+" * 500_000 + b'1"}'),
    "deeply nested": ("calculator", b"[" * 100_000),
    "power": ("calculator", b'{"expression": "9**9**9"}'),
    "attribute": ("calculator", b'{"expression": "().__class__"}'),
    "import": ("calculator", b'{"expression": "__import__(\'os\')"}'),
    "division by zero": ("calculator", b'{"expression": "1/0"}'),
    "English decimal": ("calculator", b'{"expression": "1.5*2"}'),
    "parentheses": ("calculator", b'{"expression": "' + b"(" * 90 + b"1" + b")" * 90 + b'"}'),
    "unknown tool": ("nachschlagen", b"{}"),
    "verify as a tool": ("verify", b'{"answer": "1"}'),
    "seed_session as a tool": ("seed_session", b'{"task_id": "v1/dev/0/1"}'),
    "close_session as a tool": ("close_session", b"{}"),
    "close_session with a guessed id": (
        "close_session",
        b'{"resources_session_id": "x", "episode_id": {"rollout_id": "x"}}',
    ),
    "aggregate_metrics as a tool": ("aggregate_metrics", b'{"verify_responses": []}'),
    "bridge as a tool": ("bridge/verify", b'{"session_id": "x", "answer": "1"}'),
    "OpenAPI as a tool": ("openapi.json", b"{}"),
    "query in the name": ("lookup?x=1", b'{"record_id": "L-1000"}'),
    "dunder as a tool": ("__class__", b"{}"),
}
"""Name to (tool the model wrote, bytes it wrote as arguments); each is the model's own failure."""

HOSTILE_CALLS = tuple(
    ToolCall(tool, body.decode("utf-8", "backslashreplace")) for tool, body in HOSTILE_BODIES.values()
)
"""The same as a client is given them: bytes that are no text are escaped, as the server does."""

FOREIGN_LOOKUPS = ("unknown record", "lone surrogate")
"""Those of them that do ask for a record, another one than the task's: no strict success after that."""

MALFORMED_CALLS = tuple(
    call for name, call in zip(HOSTILE_BODIES, HOSTILE_CALLS, strict=True) if name not in FOREIGN_LOOKUPS
)
"""Those that ask for nothing, so that the episode can still succeed."""


def right_path(tasks: TaskSet, task_id: str) -> tuple[ToolCall, ...]:
    """Return the calls of the scripted oracle."""
    return tasks.scripts(task_id)["oracle"].calls


def right_answer(tasks: TaskSet, task_id: str) -> str | None:
    """Return the final message of the scripted oracle."""
    return tasks.scripts(task_id)["oracle"].answer


def malformed_answers(tasks: TaskSet, task_id: str) -> dict[str, Script]:
    """Return the right path to final messages that hold the right number and are not exactly it: none may be paid."""
    right, wrong = right_answer(tasks, task_id) or "", tasks.scripts(task_id)["wrong"].answer
    answers = {
        "two numbers": f"{right} kg oder {wrong}",
        "a sentence": f"The answer: {right}!",
        "a unit": f"{right} Stück",
        "markup": f"**{right}**",
        "a LaTeX box": f"\\boxed{{{right}}}",
        "a tag": f"<answer>{right}</answer>",
        "an English decimal": f"{right}.0",
        "full-width digits": right.translate({ord("0") + digit: ord("０") + digit for digit in range(10)}),
    }
    return {name: Script(name, right_path(tasks, task_id), answer) for name, answer in answers.items()}


SIBLINGS = ("oracle", "wrong", "no_calculation", "foreign")
"""Scripts of the four rollouts of one group: each is worth another verdict, unless it sees a sibling's calls."""

TURNS = 3
"""The most calls that one of them makes."""


def groups(tasks: TaskSet, task_ids: Sequence[str]) -> list[tuple[str, Script]]:
    """Return a group of siblings for every task: (task id, script), to be played all at once."""
    return [(task_id, tasks.scripts(task_id)[name]) for task_id in task_ids for name in SIBLINGS]


def play(gym: BlockingGym, task_id: str, script: Script) -> Replay:
    """Play a scripted episode through a gym; return what it showed and its verdict."""
    with gym.open(task_id) as session:
        observations = tuple(session.call(call.tool, call.arguments) for call in script.calls)
        return Replay(observations, session.verify(script.answer))


async def play_async(gym: Gym, task_id: str, script: Script) -> Replay:
    """Play a scripted episode on the running event loop; see ``play``."""
    session = await gym.open(task_id)
    try:
        observations = [await session.call(call.tool, call.arguments) for call in script.calls]
        return Replay(tuple(observations), await session.verify(script.answer))
    finally:
        await session.close()


def fault_of(attempt: Callable[[], Result]) -> tuple[str | None, Result | None]:
    """Return (kind of the infrastructure error or name of any other exception, None) or (None, the result)."""
    try:
        return None, attempt()
    except InfrastructureError as error:
        return str(error.kind), None
    except Exception as error:
        return type(error).__name__, None


def wait_for(reached: Callable[[], bool], limit_s: float) -> bool:
    """Return whether it was reached within the limit; asks ten times a second."""
    deadline = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


async def async_fault_of(attempt: Awaitable[object]) -> str | None:
    """Return the kind of the infrastructure error that an attempt ends with, the name of any other, or None."""
    try:
        await attempt
    except InfrastructureError as error:
        return str(error.kind)
    except Exception as error:
        return type(error).__name__
    return None


def told(verdict: Verdict) -> tuple[object, ...]:
    """Return what a verdict says, without what a gym may leave out."""
    return verdict.reward, verdict.strict, verdict.outcome, dict(verdict.parts)


def raise_inside(gym: BlockingGym, task_id: str) -> None:
    """Let the trainer fail while it holds a session."""
    with gym.open(task_id):
        raise ValueError("the trainer failed")


class DisagreeingVerdict(GermanOrders):
    """A replay that pays half: the gym's verdict and the replay's must not both be believed."""

    def replay(self, *arguments: Any, **named: Any) -> Replay:
        told = super().replay(*arguments, **named)
        return replace(told, verdict=replace(told.verdict, reward=0.5))


class DisagreeingObservation(GermanOrders):
    """A replay that shows another record than the gym did."""

    def replay(self, *arguments: Any, **named: Any) -> Replay:
        told = super().replay(*arguments, **named)
        return replace(told, observations=tuple(replace(seen, text=seen.text + " ") for seen in told.observations))
