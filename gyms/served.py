"""One episode as a server keeps it: faults that stick, and one verdict.

Plain synchronous code: a client that disconnects cannot stop a mutation half-way. The owner serialises calls.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.german.episode import CallConflict, Episode, replay
from gymqual.gyms.german.tasks import Task
from gymqual.gyms.german.tools import Call, Observation
from gymqual.gyms.german.verifier import Verdict


@dataclass
class Injected:
    """What the owner of a server asks the next call to do, to try the paths that faults take."""

    delay_s: float = 0.0
    """Seconds it takes before it is executed."""
    fail: bool = False
    """It fails inside the server."""


@dataclass
class ServedEpisode:
    """The episode of one session."""

    task: Task
    fault: InfrastructureError | None = None
    """The first infrastructure failure; no later call clears it."""
    injected: Injected | None = None
    shown: list[str] = field(default_factory=list)
    """Text of every observation served, in order."""
    verdict: Verdict | None = None
    """The verdict, once there is one."""

    def __post_init__(self) -> None:
        self.episode = Episode(self.task)

    def call(self, tool: str, arguments: str, call_id: str | None = None) -> Observation:
        """Execute one call; without an id it is a new one. Raises InfrastructureError."""
        self.raise_fault()
        if self.verdict is not None:
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "the episode has its verdict; no call is executed")
        try:
            self._carry_out_injected()
            observation = self.episode.call(tool, arguments, call_id or f"call-{len(self.shown)}")
        except CallConflict as error:
            # The caller broke the protocol; the episode itself is untouched.
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, str(error)) from error
        except Exception as error:
            # The text of an unexpected exception may hold anything, so it goes to the log, not to a client.
            self.fault = InfrastructureError(Kind.SERVICE_ERROR, Scope.ROLLOUT, "the server failed inside a call")
            raise self.fault from error
        self.shown.append(observation.text)
        return observation

    def verify(self, answer: str | None, truncated: bool, calls: Sequence[Call] | None = None) -> Verdict:
        """End the episode, once; raises InfrastructureError if the session has a fault.

        ``calls`` are what the model wrote, where that is known better than by what came in.
        """
        self.raise_fault()
        if self.verdict is None:
            written = self.episode.calls if calls is None else calls
            self.verdict = replay(self.task, written, answer, truncated)[1]
        return self.verdict

    def raise_fault(self) -> None:
        """Raise the sticky fault, if there is one."""
        if self.fault is not None:
            raise self.fault

    def _carry_out_injected(self) -> None:
        injected, self.injected = self.injected, None
        if injected is not None:
            time.sleep(injected.delay_s)
            if injected.fail:
                raise RuntimeError("injected fault")
