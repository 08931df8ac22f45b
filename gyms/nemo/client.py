"""The trainer's client of the NeMo server: the gym contract over the bridge routes. Needs nothing of upstream."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

from gymqual.gyms.async_http import AsyncHttp
from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope, TaskSet, read_identity
from gymqual.gyms.blocking_http import BlockingHttp
from gymqual.gyms.client import CLOSE_DEADLINE_S, DEFAULT_DEADLINE_S, ClientGym, ClientSession
from gymqual.gyms.launch import SECRET_HEADER
from gymqual.gyms.nemo.launch import IDENTITY_HEADER
from gymqual.gyms.transport import Transport, TransportFault


class NemoGym(ClientGym):
    """A connected NeMo service; implements ``gymqual.gyms.base.Gym``."""

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
        super().__init__(tasks, expected)
        self._deadline_s = deadline_s
        self._process = ""
        kind = BlockingHttp if blocking else AsyncHttp
        self._http: Transport = kind(url, {SECRET_HEADER: secret})

    async def connect(self) -> None:
        """Ask the service what it is and agree on it; raises InfrastructureError."""
        self._agreed = None
        answer, headers = await self._exchange("identity", {})
        try:
            identity = read_identity(answer["identity"])
            process = answer["process"]
            self._process = f"{process['nonce']}/{process['pid']}"
        except (KeyError, TypeError) as error:
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, f"this is not a NeMo bridge: {error!r}") from None
        self.agree(identity)
        self._check_identity(identity, headers)

    async def request(self, session: ClientSession, operation: str, **fields: Any) -> dict[str, Any]:
        """Post once to the bridge route of this name; raises InfrastructureError."""
        self.raise_fault()
        answer, _ = await self._exchange(operation, {"session_id": session.id, **fields})
        return answer

    async def release(self, session: ClientSession) -> None:
        """Close a session on the server as far as it can be reached; never raises, and no fault comes or goes."""
        content = json.dumps({"session_id": session.id}).encode()
        # What cannot be closed expires.
        with suppress(TransportFault):
            await self._http.post("/bridge/close", content, min(self._deadline_s, CLOSE_DEADLINE_S))

    async def disconnect(self) -> None:
        """Drop all connections. Idempotent."""
        await self._http.close()

    async def _exchange(self, route: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], httpx.Headers]:
        self.require_usable()
        # ASCII escapes carry whatever a model wrote, lone surrogates included.
        content = json.dumps(body).encode()
        try:
            answer = await self._http.post(f"/bridge/{route}", content, self._deadline_s)
        except TransportFault as fault:
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
