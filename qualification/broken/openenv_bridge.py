"""The OpenEnv bridge with a switch: one defect at a time, each what a real bridge got wrong.

Runs in the gym's own stack beside ``bridge.py`` and reads the defect's name from the file ``defect`` of the
folder above its own.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.openenv import bridge  # noqa: E402

from websockets.protocol import State  # noqa: E402  isort:skip

from gymqual.gyms.base import InfrastructureError, Kind, Scope  # noqa: E402
from gymqual.gyms.openenv.strict import StrictClient  # noqa: E402

LEAK_BYTES = 400_000
POLITE_CLOSE = 1012
"""WebSocket's word for a service that restarts."""


def planted(name: str) -> bool:
    """Whether this defect is switched on."""
    switch = Path("../defect")
    return switch.is_file() and switch.read_text() == name


class BrokenClient(StrictClient):
    """The strict client under a defect."""

    async def _connect_async(self) -> StrictClient:
        # the_bridge_reconnects: upstream's client as it is, whose second connection is an empty session.
        if planted("the_bridge_reconnects") and self._ws is not None and self._ws.state is not State.OPEN:
            self._was_connected = False
        return await super()._connect_async()

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        # late_answers_surface: a time-out leaves the socket, and on it the answer that is still to come.
        if not planted("late_answers_surface"):
            return await super()._send_and_receive(message)
        async with self._turn:
            await self._connect_async()
            assert self._ws is not None
            await self._ws.send(json.dumps(message))
            try:
                return json.loads(await asyncio.wait_for(self._ws.recv(), self._deadline_s))
            except TimeoutError:
                raise InfrastructureError(Kind.TIMEOUT, Scope.SESSION, "no answer") from None

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        # replies_are_not_paired: whatever arrives next is taken for the answer.
        if not planted("replies_are_not_paired"):
            return await super()._exchange(message)
        await self._connect_async()
        assert self._ws is not None
        await self._ws.send(json.dumps(message))
        return json.loads(await self._ws.recv())


class BrokenConnection(bridge.Connection):
    """A connection of the trainer under a defect."""

    async def _carry_out(self, operation: Any, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await super()._carry_out(operation, message)
        except InfrastructureError:
            # the_bridge_hides_closes: what was not answered has not happened.
            closed = getattr(self._client and self._client._ws, "close_code", None)
            if planted("the_bridge_hides_closes") and operation == "call" and closed == POLITE_CLOSE:
                return {"text": "", "is_error": True}
            # calls_are_sent_again: on a new socket, in a new episode of the same task.
            if planted("calls_are_sent_again") and operation == "call" and self._opened is not None:
                self._client = None
                await self._open({**self._opened, "session_id": f"{id(message):x}".zfill(32)})
                return await super()._carry_out(operation, message)
            raise

    _opened: Mapping[str, Any] | None = None
    leaked: list[bytes] = []  # noqa: RUF012 - shared by all connections: that is the defect

    async def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._opened = message
        # the_bridge_leaks: transcripts of rollouts that are over.
        if planted("the_bridge_leaks"):
            self.leaked.append(b"x" * LEAK_BYTES)
        return await super()._open(message)


class BrokenBridge(bridge.Bridge):
    """The bridge under a defect."""

    def hello(self) -> dict[str, Any]:
        # the_bridge_loads_torch: a bridge that imports the trainer's package for one helper.
        if planted("the_bridge_loads_torch"):
            sys.modules["torch"] = ModuleType("torch")
        else:
            sys.modules.pop("torch", None)
        return super().hello()

    async def server_identity(self, deadline_s: float) -> dict[str, Any]:
        # any_server_will_do: whatever answers is taken for the OpenEnv server of this version.
        if not planted("any_server_will_do"):
            return await super().server_identity(deadline_s)
        answer = await self._ask_server(deadline_s)
        process = answer["process"]
        name = f"{process['nonce']}/{process['pid']}"
        return {"identity": answer["identity"], "process": name, "bridge_sources": {}}


bridge.StrictClient = BrokenClient  # type: ignore[misc]
bridge.Connection = BrokenConnection  # type: ignore[misc]
bridge.Bridge = BrokenBridge  # type: ignore[misc]

if __name__ == "__main__":
    loaded.record(Path(__file__))
    bridge.main()
