"""The trainer's client of OpenEnv: the gym contract over the bridge. Needs nothing of upstream."""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope, TaskSet, read_identity
from gymqual.gyms.client import CLOSE_DEADLINE_S, DEFAULT_DEADLINE_S, ClientGym, ClientSession
from gymqual.gyms.openenv.channel import PROTOCOL, AsyncChannel, BlockingChannel, Channel
from gymqual.gyms.transport import TransportFault

BRIDGE_MARGIN_S = 2.0
"""The bridge bounds the server's part of a request; so much later the bridge itself is given up."""


class OpenEnvGym(ClientGym):
    """A bridge and the OpenEnv service behind it; implements ``gymqual.gyms.base.Gym``."""

    def __init__(
        self,
        bridge_port: int,
        secret: str,
        tasks: TaskSet,
        *,
        expected: GymIdentity | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        blocking: bool = False,
    ) -> None:
        """Name the bridge on this machine; ``connect`` reaches it.

        ``deadline_s`` bounds every call as a whole, ``expected`` refuses any other service at ``connect``,
        ``blocking`` makes every coroutine run to its end without an event loop, for ``BlockingGym``.
        """
        super().__init__(tasks, expected)
        self._bridge_port = bridge_port
        self._secret = secret
        self._deadline_s = deadline_s
        self._channel: type[BlockingChannel] | type[AsyncChannel] = BlockingChannel if blocking else AsyncChannel
        self._channels: dict[str, Channel] = {}
        self._bridge: dict[str, Any] = {}
        self._served_by = ""

    async def connect(self) -> None:
        """Ask bridge and service what they are and agree on both; raises InfrastructureError."""
        self._agreed = None
        self.require_usable()
        channel = self._channel(self._bridge_port)
        try:
            self._bridge = (await self._greet(channel))["process"]
            answer = await self._exchange(channel, {"operation": "identity"})
            served = read_identity(answer["identity"])
            self._served_by = f"{served.digest} {answer['process']}"
            self.agree(replace(served, sources={**answer["bridge_sources"], **served.sources}))
        except (KeyError, TypeError) as error:
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, f"this is not an OpenEnv bridge: {error!r}") from None
        finally:
            channel.close()

    async def request(self, session: ClientSession, operation: str, **fields: Any) -> dict[str, Any]:
        """Make one request on the session's own connection; raises InfrastructureError."""
        self.require_usable()
        if operation == "open":
            return await self._open(session, fields["task_id"])
        channel = self._channels.get(session.id)
        if channel is None:
            raise self.fail(Kind.SESSION_LOST, Scope.SESSION, "the session is closed")
        return await self._exchange(channel, {"operation": operation, **fields})

    async def release(self, session: ClientSession) -> None:
        """Close the session; never raises, and no fault comes or goes. A connection that ends frees it as well."""
        channel = self._channels.pop(session.id, None)
        if channel is not None:
            with suppress(TransportFault):
                await channel.exchange({"id": "close", "operation": "close"}, min(self._deadline_s, CLOSE_DEADLINE_S))
            channel.close()

    async def disconnect(self) -> None:
        """Drop all connections. Idempotent."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def _open(self, session: ClientSession, task_id: str) -> dict[str, Any]:
        channel = self._channels[session.id] = self._channel(self._bridge_port)
        if (await self._greet(channel))["process"] != self._bridge:
            raise self.fail(Kind.SESSION_LOST, Scope.SERVICE, "the bridge was restarted; its sessions are gone")
        # The server's own digest: it knows nothing of the bridge.
        digest, _, process = self._served_by.partition(" ")
        asked = {"session_id": session.id, "task_id": task_id, "identity": digest}
        answer = await self._exchange(channel, {"operation": "open", **asked})
        self._check_identity(digest, process, str(answer.get("served_by")))
        return answer

    def _check_identity(self, digest: str, process: str, served_by: str) -> None:
        served_digest, _, served_process = served_by.partition(" ")
        if served_digest != digest:
            raise self.fail(Kind.IDENTITY_CHANGED, Scope.SERVICE, "the answering service is not the agreed one")
        if served_process != process:
            raise self.fail(Kind.SESSION_LOST, Scope.SERVICE, "the service was restarted; its sessions are gone")

    async def _greet(self, channel: Channel) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        hello = {"protocol": PROTOCOL, "nonce": nonce, "secret": self._secret}
        answer = await self._send(channel, hello, self._deadline_s)
        if (answer.get("protocol"), answer.get("nonce")) != (PROTOCOL, nonce):
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, f"what listens on port {self._bridge_port} is no bridge")
        return answer

    async def _exchange(self, channel: Channel, message: Mapping[str, Any]) -> dict[str, Any]:
        name = secrets.token_hex(8)
        asked = {"id": name, "deadline_s": self._deadline_s, **message}
        answer = await self._send(channel, asked, self._deadline_s + BRIDGE_MARGIN_S)
        fields = answer.get("fields")
        if answer.get("id") != name or not isinstance(fields, dict):
            channel.close()
            raise self.fail(Kind.PROTOCOL, Scope.SERVICE, "an answer to something else than what was asked")
        return fields

    async def _send(self, channel: Channel, message: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        try:
            answer = await channel.exchange(message, deadline_s)
        except TransportFault as fault:
            raise self.fail(fault.kind, Scope.SERVICE, str(fault)) from None
        if "fault" in answer:
            raise self._refused(answer["fault"])
        return answer

    def _refused(self, fault: Any) -> InfrastructureError:
        try:
            return self.fail(Kind(fault["kind"]), Scope(fault["scope"]), str(fault["detail"]))
        except (KeyError, TypeError, ValueError):
            return self.fail(Kind.PROTOCOL, Scope.SERVICE, "a failure that is not of this contract")
