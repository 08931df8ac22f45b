"""Upstream's SDK client without its second chances: one WebSocket, one episode, one call at a time.

Upstream reconnects silently, to a session that knows nothing of the episode, and after a time-out or a
concurrent call it may hand out the answer to another request. Here the first thing that goes wrong ends the
client for good, and every answer must name what it answers.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from openenv.core.env_server.types import WSErrorCode
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.openenv.launch import MAX_MESSAGE_BYTES

KINDS = {
    WSErrorCode.CAPACITY_REACHED: (Kind.CAPACITY, Scope.SERVICE),
    WSErrorCode.SESSION_ERROR: (Kind.SESSION_LOST, Scope.SESSION),
    WSErrorCode.FACTORY_ERROR: (Kind.SERVICE_ERROR, Scope.SERVICE),
    WSErrorCode.VALIDATION_ERROR: (Kind.PROTOCOL, Scope.ROLLOUT),
    WSErrorCode.INVALID_JSON: (Kind.PROTOCOL, Scope.ROLLOUT),
    WSErrorCode.UNKNOWN_TYPE: (Kind.PROTOCOL, Scope.ROLLOUT),
}
"""What upstream's error codes mean. EXECUTION_ERROR carries our own words, see ``_execution_error``."""


class StrictClient(GenericEnvClient):
    """Raises InfrastructureError and nothing else; once it has, every later call raises it again."""

    def __init__(self, url: str, deadline_s: float) -> None:
        """``deadline_s`` bounds every request as a whole, connecting included."""
        super().__init__(base_url=url, max_message_size_mb=MAX_MESSAGE_BYTES / 2**20)
        self._deadline_s = deadline_s
        self._turn = asyncio.Lock()
        self._lost: InfrastructureError | None = None
        self._was_connected = False

    def abort(self) -> None:
        """Drop the connection at once, without a farewell; the server frees the slot. Idempotent."""
        if self._ws is not None:
            self._ws.transport.abort()
        if self._lost is None:
            self._lost = InfrastructureError(Kind.SESSION_LOST, Scope.SESSION, "the session was dropped")

    async def _connect_async(self) -> "StrictClient":
        if not self._was_connected:
            self._was_connected = True
            await super()._connect_async()
        elif self._ws is None or self._ws.state is not State.OPEN:
            raise ConnectionError("the connection was lost; it is not made again")
        return self

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            if self._lost is not None:
                raise self._lost
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await self._exchange(message)
            except asyncio.CancelledError:
                self.abort()
                raise
            except Exception as error:
                self._lost = self._classified(error)
                # Not closed politely: upstream would wait 10 s for a server that hangs.
                self.abort()
                raise self._lost from None

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        await self._connect_async()
        assert self._ws is not None
        # A server that is full says so and closes; its word may still be there to be read.
        with suppress(ConnectionClosed):
            await self._ws.send(json.dumps(message))
        answer = json.loads(await self._ws.recv())
        data = answer["data"]
        if answer["type"] == "error":
            raise _refusal(data)
        if answer["type"] == "observation":
            observation, wanted = data["observation"], _name_of(message)
            if observation.get("reply_to") != wanted:
                raise _fault(Kind.PROTOCOL, f"an answer to {observation.get('reply_to')!r} instead of {wanted!r}")
        return answer

    def _classified(self, error: Exception) -> InfrastructureError:
        match error:
            case InfrastructureError():
                return error
            case TimeoutError():
                return _fault(Kind.TIMEOUT, f"the server did not answer within {self._deadline_s:g} s")
            case ConnectionError() if isinstance(error.__cause__, InvalidHandshake):
                return _fault(Kind.PROTOCOL, f"{self._ws_url} speaks no OpenEnv ({error.__cause__})")
            case ConnectionClosed() | OSError():
                return _fault(Kind.UNREACHABLE, f"the connection to {self._ws_url} is lost ({error})")
            case ValueError() | KeyError() | TypeError():
                return _fault(Kind.PROTOCOL, f"an answer that is none ({type(error).__name__})")
        return _fault(Kind.SERVICE_ERROR, repr(error))


def _name_of(message: Mapping[str, Any]) -> Any:
    data = message.get("data", {})
    return data.get("episode_id") if message["type"] == "reset" else data.get("call_id")


def _refusal(data: Mapping[str, Any]) -> InfrastructureError:
    text = str(data.get("message"))
    if data.get("code") == WSErrorCode.EXECUTION_ERROR:
        try:
            fault = json.loads(text)
            return InfrastructureError(Kind(fault["kind"]), Scope(fault["scope"]), fault["detail"])
        except (ValueError, KeyError, TypeError):
            # An exception that is not ours; its text stays here.
            return _fault(Kind.SERVICE_ERROR, "the server failed inside a step")
    kind, scope = KINDS.get(data.get("code"), (Kind.PROTOCOL, Scope.SERVICE))  # type: ignore[arg-type]
    return InfrastructureError(kind, scope, text)


def _fault(kind: Kind, detail: str) -> InfrastructureError:
    return InfrastructureError(kind, Scope.SESSION, detail)
