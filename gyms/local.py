"""A task set played in this process: the gym contract without a gym, for evaluation on a bare machine."""

from gymqual.gyms.base import Observation, TaskSet, ToolCall, Verdict


class LocalGym:
    """Opens sessions that are nothing but the replay."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks

    def open(self, task_id: str) -> "LocalSession":
        """Open an episode."""
        return LocalSession(self._tasks, task_id)


class LocalSession:
    """One episode."""

    def __init__(self, tasks: TaskSet, task_id: str) -> None:
        self._tasks = tasks
        self._task_id = task_id
        self._calls: list[ToolCall] = []

    def call(self, tool: str, arguments: str) -> Observation:
        """Execute one model call."""
        self._calls.append(ToolCall(tool, arguments))
        return self._tasks.replay(self._task_id, self._calls, None).observations[-1]

    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """Judge the episode."""
        return self._tasks.replay(self._task_id, self._calls, answer, truncated).verdict

    def close(self) -> None:
        """Nothing is held."""
