"""The tool server that all rollouts of a run share. Upstream starts it as ``python -m gymqual.gyms.verifiers.tools``.

A server per rollout would cost twenty times as much. A rollout's calls are kept in its own state, which upstream
fetches before and stores after each call. The server answers ``tools/list`` and ``tools/call`` itself: upstream's
decorator would advertise another schema and drop, coerce or refuse arguments in words that are not the core's.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded

loaded.install()

import verifiers.v1 as vf  # noqa: E402
from mcp.server.context import ServerRequestContext  # noqa: E402
from mcp.server.mcpserver import MCPServer  # noqa: E402
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

from gymqual.gyms.german.episode import replay  # noqa: E402
from gymqual.gyms.german.tasks import find_task  # noqa: E402
from gymqual.gyms.german.tools import Call, Observation  # noqa: E402
from gymqual.gyms.german_orders import TOOLS  # noqa: E402

UNAVAILABLE = "FEHLER: Werkzeug nicht verfügbar"
"""What is shown once the server itself has failed; the rollout ends before its next model call."""


class Served(BaseModel):
    """One call as it arrived and what it was shown."""

    tool: str
    arguments: str
    text: str


class EpisodeState(vf.State):
    """What environment and tool server share of one rollout. Never shown to a model."""

    task_id: str = ""
    core: str = ""
    """sha256 of the task core that the tool server executes."""
    served: list[Served] = Field(default_factory=list)
    served_at: float = 0.0
    """When the last of them was shown, in seconds since the epoch, as upstream's own spans are."""
    faults: list[str] = Field(default_factory=list)
    """What failed inside the tool server. Nothing a model writes gets in here."""
    fault: str = ""
    """What the owner of the run asks the next call to do wrong; see ``taskset.Fault``."""


class GermanOrdersToolset(vf.Toolset[vf.SharedToolsetConfig, EpisodeState]):
    """The tools ``lookup`` and ``calculator`` of the task core."""

    # Bare names: a prefix would give the model other tools than the other gyms and the trainer do.
    TOOL_PREFIX = None

    def register(self, mcp: MCPServer) -> None:
        """Answer for the tools before upstream's own handlers do."""
        mcp.middleware.append(self._answer)

    async def _answer(
        self,
        request: ServerRequestContext[Any, Any],
        call_next: Callable[[ServerRequestContext[Any, Any]], Awaitable[Any]],
    ) -> Any:
        if request.method == "tools/list":
            listed = [
                Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
                for tool in TOOLS
            ]
            return ListToolsResult(tools=listed)
        if request.method == "tools/call":
            params = dict(request.params or {})
            return await self._with_state(self.call)(str(params.get("name")), params.get("arguments"))
        return await call_next(request)

    async def call(self, tool: str, arguments: object) -> CallToolResult:
        """Execute one call of the rollout whose state is bound; never raises."""
        state = self.state
        state.core = _core()
        text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        try:
            observation = await self.observe(state, Call(tool, text))
        except Exception as error:
            # A tool that raises loses its state and is taken by upstream for the model's own error.
            state.faults.append(f"{tool}: {type(error).__name__}: {error}"[:500])
            observation = Observation(UNAVAILABLE, is_error=True)
        state.served.append(Served(tool=tool, arguments=text, text=observation.text))
        state.served_at = time.time()
        return CallToolResult(content=[TextContent(text=observation.text)], is_error=observation.is_error)

    async def observe(self, state: EpisodeState, call: Call) -> Observation:
        """Return what the core shows of this call after those before it."""
        await carry_out(state.fault)
        before = [Call(served.tool, served.arguments) for served in state.served]
        return replay(find_task(state.task_id), [*before, call], None)[0][-1]


@cache
def _core() -> str:
    return loaded.core_digest(loaded.executed())


async def carry_out(fault: str) -> None:
    """Fail as the owner of the run asked for."""
    if fault == "tool_raises":
        raise RuntimeError("injected fault")
    if fault == "tool_hangs":
        await asyncio.sleep(3600)
    if fault == "tool_server_exits":
        os._exit(1)


if __name__ == "__main__":
    loaded.record(Path(__file__))
    GermanOrdersToolset.run()
