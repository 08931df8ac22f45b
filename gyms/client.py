"""What every client of ours does alike: agree once, let faults stick, believe a verdict only after its replay.

A gym's client adds how a request reaches its service. A request is made once, and whatever may have happened
to it is an infrastructure failure, never a second request.
"""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from gymqual.gyms.base import (
    GymIdentity,
    InfrastructureError,
    Kind,
    Observation,
    Scope,
    TaskSet,
    ToolCall,
    Verdict,
    require_agreement,
)

DEFAULT_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 5.0
"""For closing all that is open. A courtesy to the server: it may not hold up a trainer that is ending."""


MAX_CALL_CHARS = 200_000
"""Of a call or an answer; what a model wrote beyond is cut before it is sent, and replayed as cut.

Far more than any tool accepts: without it a model could write a message that is too long, and end the run.
"""


class ClientGym(ABC):
    """A connected service; implements ``gymqual.gyms.base.Gym``."""

    def __init__(self, tasks: TaskSet, expected: GymIdentity | None) -> None:
        self.tasks = tasks
        self._expected = expected
        self._agreed: GymIdentity | None = None
        self._fault: InfrastructureError | None = None
        self._sessions: dict[str, ClientSession] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def connect(self) -> None:
        """Ask the service what it is and agree on it; raises InfrastructureError."""

    @abstractmethod
    async def request(self, session: "ClientSession", operation: str, **fields: Any) -> dict[str, Any]:
        """Make one request of a session and return the answer's fields; raises InfrastructureError."""

    @abstractmethod
    async def release(self, session: "ClientSession") -> None:
        """Close a session on the server as far as it can be reached. Bounded, never raises, no fault comes or goes."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Drop all connections. Idempotent."""

    def identity(self) -> GymIdentity:
        """Return what was agreed on; raises the sticky fault, or InfrastructureError before ``connect``."""
        self.raise_fault()
        if self._agreed is None:
            raise InfrastructureError(Kind.PROTOCOL, Scope.SERVICE, "connect() first")
        return self._agreed

    async def open(self, task_id: str) -> "ClientSession":
        """Open a fresh episode under a new random id; raises InfrastructureError."""
        identity = self.identity().digest
        session = ClientSession(self, secrets.token_hex(16), task_id)
        # Before it is asked for: an open whose answer is lost may have been carried out, and must be closed.
        self._sessions[session.id] = session
        try:
            await self.request(session, "open", task_id=task_id, identity=identity)
        except InfrastructureError as error:
            if error.kind is Kind.CAPACITY:
                await session.close()
            raise
        return session

    def reset_fault(self) -> None:
        """Forget the sticky fault. For the owner of the service alone, once it is known to be well."""
        self._fault = None

    async def close(self) -> None:
        """Close every session that is still open, then the connections. Idempotent, bounded, never raises."""
        self._closed = True
        until = time.monotonic() + CLOSE_DEADLINE_S
        for session in list(self._sessions.values()):
            # What is left when the time is up ends with its connection, or expires on the server.
            if time.monotonic() < until:
                await session.close()
        await self.disconnect()

    # ---- for sessions ------------------------------------------------------------------------------

    def raise_fault(self) -> None:
        """Raise the sticky fault, if there is one."""
        if self._fault is not None:
            raise self._fault

    def fail(self, kind: Kind, scope: Scope, detail: str) -> InfrastructureError:
        """Return the fault, which sticks unless it is a refusal for capacity; the first one is kept."""
        fault = InfrastructureError(kind, scope, detail)
        if kind is not Kind.CAPACITY and self._fault is None:
            self._fault = fault
        return fault

    def require_usable(self) -> None:
        """Raise the sticky fault, or InfrastructureError if the owner has closed this client."""
        self.raise_fault()
        if self._closed:
            raise self.fail(Kind.UNREACHABLE, Scope.SERVICE, "this client was closed by its owner")

    def agree(self, identity: GymIdentity) -> None:
        """Take a service for what it says it is; raises InfrastructureError if another one is expected."""
        if self._expected is not None and identity != self._expected:
            raise self.fail(Kind.IDENTITY_CHANGED, Scope.SERVICE, "the service is not the expected one")
        self._agreed = identity

    def forget(self, session: "ClientSession") -> None:
        """Leave a session out of what is closed at the end."""
        self._sessions.pop(session.id, None)


class ClientSession:
    """One episode on a service; implements ``gymqual.gyms.base.Session``."""

    def __init__(self, gym: ClientGym, session_id: str, task_id: str) -> None:
        self._gym = gym
        self._session_id = session_id
        self._task_id = task_id
        self._calls: list[ToolCall] = []
        self._observations: list[Observation] = []
        self._turn = asyncio.Lock()
        self._verdict: Verdict | None = None
        self._closed = False

    @property
    def id(self) -> str:
        """Opaque id of 128 random bits, never shown to a model."""
        return self._session_id

    async def call(self, tool: str, arguments: str) -> Observation:
        """Execute one model call; raises InfrastructureError. The model's failures are observations."""
        # One at a time: calls of one turn that are made together keep their order, here and on the server.
        async with self._turn:
            tool, arguments = tool[:MAX_CALL_CHARS], arguments[:MAX_CALL_CHARS]
            call_id = str(len(self._calls))
            self._calls.append(ToolCall(tool, arguments))
            answer = await self._gym.request(self, "call", call_id=call_id, tool=tool, arguments=arguments)
            text, is_error = answer.get("text"), answer.get("is_error")
            if not isinstance(text, str) or not isinstance(is_error, bool):
                raise self._gym.fail(Kind.PROTOCOL, Scope.ROLLOUT, "the answer to a call is not an observation")
            observation = Observation(text, is_error)
            self._observations.append(observation)
            return observation

    async def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """End the episode; the verdict is returned only if the independent replay agrees with it.

        Repeated, it asks again and returns the same verdict. Raises InfrastructureError.
        """
        answer = None if answer is None else answer[:MAX_CALL_CHARS]
        async with self._turn:
            fields = await self._gym.request(self, "verify", answer=answer, truncated=truncated)
        try:
            verdict = Verdict(**fields)
        except TypeError as error:
            raise self._gym.fail(Kind.PROTOCOL, Scope.ROLLOUT, f"not a verdict: {error}") from None
        if self._verdict is None:
            replay = self._gym.tasks.replay(self._task_id, self._calls, answer, truncated)
            try:
                require_agreement(replay, self._observations, verdict)
            except InfrastructureError as error:
                raise self._gym.fail(error.kind, error.scope, error.detail) from None
            self._verdict = verdict
        elif verdict != self._verdict:
            raise self._gym.fail(Kind.PROTOCOL, Scope.ROLLOUT, "the service changed a verdict it had given")
        return verdict

    async def close(self) -> None:
        """Release the session. Idempotent, bounded, never raises."""
        if not self._closed:
            self._closed = True
            self._gym.forget(self)
            await self._gym.release(self)
