"""The smallest taskset that upstream's scaffold makes, filled in: the reference of benchmarks.

One tool by upstream's own decorator on a shared server, no state, a constant reward. The tool is named like one of
ours, so that the same fixture harness plays it: two calls and an answer, as a German order has.
"""

from collections.abc import Iterator

import verifiers.v1 as vf

from gymqual.gyms.verifiers.taskset import Scripted

__all__ = ["TrivialTaskset"]

CALL = ("calculator", '{"expression":"12*8-3"}')


class TrivialToolset(vf.Toolset[vf.SharedToolsetConfig]):
    """One tool that does nothing."""

    TOOL_PREFIX = None

    @vf.tool
    def calculator(self, expression: str) -> str:
        """Return the text."""
        return expression


class TrivialData(vf.TaskData):
    """What the fixture harness asks of a task."""

    task_id: str = "v1/dev/0/0"
    script: Scripted = Scripted(calls=(CALL, CALL), answer="93")


class TrivialTask(vf.Task[TrivialData, vf.State, vf.TaskConfig]):
    """Worth 1.0, whatever happens."""

    @vf.reward
    async def reward(self) -> float:
        """Return 1.0."""
        return 1.0


class TrivialTaskset(vf.Taskset[TrivialTask, vf.TasksetConfig]):
    """Equal tasks."""

    def load(self) -> Iterator[TrivialTask]:
        """Yield 256 of them."""
        return (TrivialTask(TrivialData(prompt="12*8-3?", system_prompt="Rechne.")) for _ in range(256))

    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        """One tool server for all rollouts."""
        return [TrivialToolset(vf.SharedToolsetConfig())]


if __name__ == "__main__":
    TrivialToolset.run()
