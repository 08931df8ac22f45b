"""The OpenEnv bridge with a switch: one defect at a time, each what a real bridge got wrong.

Runs in the gym's own stack beside ``bridge.py`` and reads the defect's name from the file ``defect`` of the
folder above its own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gyms.openenv import bridge
from gyms.openenv.strict import StrictClient


def planted(name: str) -> bool:
    """Whether this defect is switched on."""
    switch = Path("../defect")
    return switch.is_file() and switch.read_text() == name


class BrokenClient(StrictClient):
    """The strict client under a defect."""

    async def _connect_async(self) -> StrictClient:
        # the_bridge_reconnects: upstream's client as it is, whose second connection is an empty session.
        if planted("the_bridge_reconnects"):
            self._was_connected = False
        return await super()._connect_async()

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        # replies_are_not_paired: whatever arrives next is taken for the answer.
        if not planted("replies_are_not_paired"):
            return await super()._exchange(message)
        await self._connect_async()
        assert self._ws is not None
        await self._ws.send(bridge_json(message))
        answer = read_json(await self._ws.recv())
        return answer if answer["type"] != "error" else await super()._exchange(message)

    def _classified(self, error: Exception) -> Any:
        return super()._classified(error)


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
        # any_server_will_do: whatever answers is taken for an OpenEnv server.
        if planted("any_server_will_do"):
            answer = await self._ask_server(deadline_s)
            process = answer["process"]
            name = f"{process['nonce']}/{process['pid']}"
            return {"identity": answer["identity"], "process": name, "bridge_sources": {}}
        return await super().server_identity(deadline_s)


bridge.StrictClient = BrokenClient  # type: ignore[misc]
bridge.Bridge = BrokenBridge  # type: ignore[misc]


def bridge_json(message: Mapping[str, Any]) -> str:
    return bridge.json.dumps(message)  # type: ignore[attr-defined]


if __name__ == "__main__":
    bridge.main()
