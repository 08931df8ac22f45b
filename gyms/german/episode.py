"""One episode as a state machine without I/O: calls in, observations out, one final verdict.

Exceptions here mean that the *caller* broke the protocol; a model's failures are observations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .tasks import Task
from .tools import MAX_ARGUMENT_CHARS, MAX_TOOL_CHARS, Call, Observation, as_json, observe
from .verifier import Verdict, judge

MAX_CALLS = 64
TOO_MANY_CALLS = Observation(as_json({"fehler": "zu viele Aufrufe"}), is_error=True)
"""What every call beyond MAX_CALLS shows; none of them is executed or logged."""


class Event(NamedTuple):
    """One logged call with its observation."""

    call_id: str
    call: Call
    observation: Observation


class EpisodeFinished(RuntimeError):
    """A call after the verdict."""


class CallConflict(ValueError):
    """A call id was used again for a different call."""


class Episode:
    """The episode of one task. Not thread-safe: the owner serialises calls."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.events: list[Event] = []
        self._by_id: dict[str, Event] = {}
        self._verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict once the episode is finished."""
        return self._verdict

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls so far, enough to replay the episode."""
        return tuple(event.call for event in self.events)

    def call(self, tool: str, arguments: str, call_id: str) -> Observation:
        """Execute one call, or return the stored result of a repeated ``call_id``.

        Raises EpisodeFinished after the verdict, CallConflict when ``call_id`` named another call.
        """
        if self._verdict is not None:
            raise EpisodeFinished("the episode has its verdict; no further call is executed")
        # One character beyond a limit is kept: enough to refuse the call again on replay.
        call = Call(tool[: MAX_TOOL_CHARS + 1], arguments[: MAX_ARGUMENT_CHARS + 1])
        stored = self._by_id.get(call_id)
        if stored is not None:
            if stored.call != call:
                raise CallConflict("this call id was used for a different call")
            return stored.observation
        if len(self.events) >= MAX_CALLS:
            return TOO_MANY_CALLS
        event = Event(call_id, call, observe(self.task, call))
        self.events.append(event)
        self._by_id[call_id] = event
        return event.observation

    def finish(self, answer: str | None, truncated: bool = False) -> Verdict:
        """Judge the episode once; every later call returns that same verdict.

        ``answer`` is the text of the final assistant message, None if there was none.
        """
        if self._verdict is None:
            self._verdict = judge(self.task, self.calls, answer, truncated)
        return self._verdict


def replay(
    task: Task, calls: Sequence[Call], answer: str | None, truncated: bool = False
) -> tuple[tuple[Observation, ...], Verdict]:
    """Run the calls through a fresh episode: the observation of every call, and the verdict."""
    episode = Episode(task)
    observations = tuple(
        episode.call(call.tool, call.arguments, f"replay-{number}") for number, call in enumerate(calls)
    )
    return observations, episode.finish(answer, truncated)
