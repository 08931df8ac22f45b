"""Sessions of one server: bounded, never recreated, never revived, faults that stick.

Plain synchronous code without an await, so that no other request can run between a check and the
mutation it guards, and a client that disconnects cannot stop a mutation half-way.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import Task
from gymqual.gyms.served import ServedEpisode

REMEMBERED_IDS = 100_000
"""Closed and expired ids that are kept so that none is ever opened again."""


def session_lost() -> InfrastructureError:
    """The one answer for an id that was never opened, was closed, has expired or is forged."""
    return InfrastructureError(Kind.SESSION_LOST, Scope.SESSION, "there is no open session of this id")


@dataclass
class ServedSession(ServedEpisode):
    """One open session."""

    session_id: str = ""
    owner: object = None
    """What a repeated open must match: the seed request's identity."""
    last_used: float = 0.0


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
        session = ServedSession(task, session_id=session_id, owner=owner, last_used=self._clock())
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
