"""Sessions of one server: bounded, never recreated, never revived, faults that stick.

Plain synchronous code without an await, so that no other request can run between a check and the
mutation it guards, and a client that disconnects cannot stop a mutation half-way.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gyms.base import InfrastructureError, Kind, Scope
from gyms.german.episode import CallConflict, Episode, replay
from gyms.german.tasks import Task
from gyms.german.tools import Call, Observation
from gyms.german.verifier import Verdict

REMEMBERED_IDS = 100_000
"""Closed and expired ids that are kept so that none is ever opened again."""


def session_lost() -> InfrastructureError:
    """The one answer for an id that was never opened, was closed, has expired or is forged."""
    return InfrastructureError(Kind.SESSION_LOST, Scope.SESSION, "there is no open session of this id")


@dataclass
class ServedSession:
    """One open session."""

    session_id: str
    task: Task
    owner: object
    """What a repeated open must match: the seed request's identity."""
    episode: Episode
    last_used: float
    fault: InfrastructureError | None = None
    """The first infrastructure failure; no later call clears it."""
    fail_next: bool = False
    """Ask the next call to fail inside the server, to try the fault path."""
    shown: list[str] = field(default_factory=list)
    """Text of every observation served, in order."""
    verdict: Verdict | None = None
    """The verdict, once there is one."""

    def call(self, tool: str, arguments: str, call_id: str | None = None) -> Observation:
        """Execute one call; without an id it is a new one. Raises InfrastructureError."""
        self.raise_fault()
        if self.verdict is not None:
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "the episode has its verdict; no call is executed")
        try:
            if self.fail_next:
                self.fail_next = False
                raise RuntimeError("injected fault")
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


class SessionStore:
    """All sessions of one server process."""

    def __init__(self, capacity: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = capacity
        self._ttl_s = ttl_s
        self._clock = clock
        # Least recently used first, so that expiry looks at the front only.
        self._open: OrderedDict[str, ServedSession] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.counts = {"opened": 0, "closed": 0, "expired": 0, "refused": 0}

    def state(self) -> dict[str, int]:
        """Return counters, for the owner's eyes."""
        self._expire()
        return {"open": len(self._open), "capacity": self.capacity, **self.counts}

    def open(self, session_id: str, task: Task, owner: object = None) -> ServedSession:
        """Open a session under a caller-chosen id, or return the one the same owner already opened.

        Raises InfrastructureError: ``session_lost`` for an id that is gone, ``protocol`` for one that belongs
        to another owner, ``capacity`` when full.
        """
        self._expire()
        known = self._open.get(session_id)
        if known is not None:
            if owner is None or known.owner != owner:
                raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "the id is in use by another session")
            return known
        if session_id in self._gone:
            raise session_lost()
        if len(self._open) >= self.capacity:
            self.counts["refused"] += 1
            raise InfrastructureError(Kind.CAPACITY, Scope.SERVICE, f"all {self.capacity} sessions are in use")
        session = ServedSession(session_id, task, owner, Episode(task), self._clock())
        self._open[session_id] = session
        self.counts["opened"] += 1
        return session

    def get(self, session_id: object) -> ServedSession:
        """Return an open session; raises InfrastructureError ``session_lost``. Never creates one."""
        self._expire()
        session = self._open.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            raise session_lost()
        session.last_used = self._clock()
        self._open.move_to_end(session.session_id)
        return session

    def is_open(self, session_id: object) -> bool:
        """Whether a session of this id is open; does not count as using it."""
        self._expire()
        return session_id in self._open

    def close(self, session_id: str) -> None:
        """Release a session. Idempotent, also for an id never seen, which can then not be opened later."""
        if self._open.pop(session_id, None) is not None:
            self.counts["closed"] += 1
        self._remember(session_id)

    def _expire(self) -> None:
        oldest_allowed = self._clock() - self._ttl_s
        while self._open:
            session_id, session = next(iter(self._open.items()))
            if session.last_used > oldest_allowed:
                return
            del self._open[session_id]
            self.counts["expired"] += 1
            self._remember(session_id)

    def _remember(self, session_id: str) -> None:
        self._gone[session_id] = None
        while len(self._gone) > REMEMBERED_IDS:
            self._gone.popitem(last=False)


def fresh_session_id() -> str:
    """Return a new opaque id of 128 random bits."""
    return secrets.token_hex(16)
