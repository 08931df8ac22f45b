"""The trainer's client of the NeMo server: the gym contract over the bridge routes.

Needs nothing of upstream. A call is sent once, and whatever may have happened to it is an infrastructure
failure, never a second call.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import httpx

from gyms import transport
from gyms.base import (
    GymIdentity,
    InfrastructureError,
    Kind,
    Observation,
    Scope,
    TaskSet,
    ToolCall,
    Verdict,
    read_identity,
    require_agreement,
)
from gyms.nemo.launch import IDENTITY_HEADER, SECRET_HEADER

DEFAULT_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 5.0
"""For closing all that is open. A courtesy to the server: it may not hold up a trainer that is ending."""


class NemoGym:
    """A connected NeMo service; implements ``gyms.base.Gym``."""

    def __init__(
        self,
        url: str,
        secret: str,
        tasks: TaskSet,
        *,
        expected: GymIdentity | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        blocking: bool = False,
    ) -> None:
        """Name the service; ``connect`` reaches it. Raises ValueError for what is no URL.

        ``deadline_s`` bounds every call as a whole, ``expected`` refuses any other service at ``connect``,
        ``blocking`` makes every coroutine run to its end without an event loop, for ``BlockingGym``.
        """
        self.tasks = tasks
        self._deadline_s = deadline_s
        self._expected = expected
        self._agreed: GymIdentity | None = None
        self._process = ""
        self._fault: InfrastructureError | None = None
        self._open: dict[str, NemoSession] = {}
        self._closed = False
        kind = transport.BlockingHttp if blocking else transport.AsyncHttp
        self._http: transport.Transport = kind(url, {SECRET_HEADER: secret})

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Ask the service what it is and agree on it; raises InfrastructureError."""
        self._agreed = None
        answer, headers = await self._exchange("identity", {}, self._deadline_s)
        try:
            identity = read_identity(answer["identity"])
            process = answer["process"]
            self._process = f"{process['nonce']}/{process['pid']}"
        except (KeyError, TypeError) as error:
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, f"this is not a NeMo bridge: {error!r}") from None
        if self._expected is not None and identity != self._expected:
            raise self.fail(Kind.IDENTITY_CHANGED, Scope.SERVICE, "the service is not the expected one")
        self._agreed = identity
        self._check_identity(identity, headers)

    def identity(self) -> GymIdentity:
        """Return what was agreed on; raises the sticky fault, or InfrastructureError before ``connect``."""
        self.raise_fault()
        if self._agreed is None:
            raise InfrastructureError(Kind.PROTOCOL, Scope.SERVICE, "connect() first")
        return self._agreed

    async def open(self, task_id: str) -> "NemoSession":
        """Open a fresh episode under a new random id; raises InfrastructureError."""
        identity = self.identity().digest
        session = NemoSession(self, secrets.token_hex(16), task_id)
        # Before it is asked for: an open whose answer is lost may have been carried out, and must be closed.
        self._open[session.id] = session
        try:
            await self.post("open", session_id=session.id, task_id=task_id, identity=identity)
        except InfrastructureError as error:
            if error.kind is Kind.CAPACITY:
                del self._open[session.id]
            raise
        return session

    def reset_fault(self) -> None:
        """Forget the sticky fault. For the owner of the service alone, once it is known to be well."""
        self._fault = None

    async def close(self) -> None:
        """Close every session that is still open, then the connections. Idempotent, bounded, never raises."""
        self._closed = True
        until = time.monotonic() + CLOSE_DEADLINE_S
        for session in list(self._open.values()):
            # What is left when the time is up expires on the server.
            if time.monotonic() < until:
                await session.close()
        await self._http.close()

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

    async def post(self, route: str, **body: Any) -> dict[str, Any]:
        """Post once to a bridge route and return its JSON object; raises InfrastructureError."""
        self.raise_fault()
        answer, _ = await self._exchange(route, body, self._deadline_s)
        return answer

    async def release(self, session_id: str) -> None:
        """Close a session on the server as far as it can be reached; never raises, and no fault comes or goes."""
        self._open.pop(session_id, None)
        content = json.dumps({"session_id": session_id}).encode()
        # What cannot be closed expires.
        with suppress(transport.TransportFault):
            await self._http.post("/bridge/close", content, min(self._deadline_s, CLOSE_DEADLINE_S))

    async def _exchange(
        self, route: str, body: Mapping[str, Any], deadline_s: float
    ) -> tuple[dict[str, Any], httpx.Headers]:
        if self._closed:
            raise self.fail(Kind.UNREACHABLE, Scope.SERVICE, "this client was closed by its owner")
        # ASCII escapes carry whatever a model wrote, lone surrogates included.
        content = json.dumps(body).encode()
        try:
            answer = await self._http.post(f"/bridge/{route}", content, deadline_s)
        except transport.TransportFault as fault:
            raise self.fail(fault.kind, Scope.SERVICE, str(fault)) from None
        try:
            fields = json.loads(answer.content)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            detail = f"{route}: status {answer.status} with {len(answer.content)} bytes that are no JSON object"
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, detail)
        # Before anything is believed, a refusal included: whose answer is this?
        if self._agreed is not None:
            self._check_identity(self._agreed, answer.headers)
        elif IDENTITY_HEADER not in answer.headers:
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, "wrong bridge secret, or not a NeMo bridge")
        if answer.status != httpx.codes.OK:
            raise self._refused(route, answer.status, fields)
        return fields, answer.headers

    def _refused(self, route: str, status: int, fields: Mapping[str, Any]) -> InfrastructureError:
        detail = f"{route}: {fields.get('detail')}"
        try:
            return self.fail(Kind(fields.get("kind")), Scope(fields.get("scope")), detail)
        except ValueError:
            kind = Kind.SERVICE_ERROR if status >= 500 else Kind.PROTOCOL
            return self.fail(kind, Scope.SERVICE, f"{route}: status {status}, not of this contract")

    def _check_identity(self, agreed: GymIdentity, headers: httpx.Headers) -> None:
        digest, _, process = headers.get(IDENTITY_HEADER, "").partition(" ")
        if digest != agreed.digest:
            raise self.fail(Kind.IDENTITY_CHANGED, Scope.SERVICE, "the answering service is not the agreed one")
        if process != self._process:
            raise self.fail(Kind.SESSION_LOST, Scope.SERVICE, "the service was restarted; its sessions are gone")


class NemoSession:
    """One episode on a NeMo service; implements ``gyms.base.Session``."""

    def __init__(self, gym: NemoGym, session_id: str, task_id: str) -> None:
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
            call_id = str(len(self._calls))
            self._calls.append(ToolCall(tool, arguments))
            answer = await self._gym.post(
                "call", session_id=self._session_id, call_id=call_id, tool=tool, arguments=arguments
            )
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
        fields = await self._gym.post("verify", session_id=self._session_id, answer=answer, truncated=truncated)
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
            await self._gym.release(self._session_id)
