"""What TRL sees of a gym: an environment whose public methods are ``reset`` and the task's tools, and nothing else.

TRL turns every public method of an environment into a tool and every exception of a tool into text for the
model. So verification and cleanup are private here, and the gym's sticky fault is asked for, not waited for.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from gymqual.gyms.base import InfrastructureError, Observation, TaskSet, ToolCall, Verdict
from gymqual.gyms.blocking import BlockingGym, BlockingSession
from gymqual.trainer.runs.written import AS_WRITTEN

PYTHON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


class GymEnvironment:
    """One rollout slot: TRL makes a few and resets each for rollout after rollout."""

    _gym: BlockingGym

    def __init__(self) -> None:
        self._session: BlockingSession | None = None
        self._fault: InfrastructureError | None = None
        self._task_id = ""
        self._calls: list[tuple[ToolCall, Observation]] = []
        self._answer: str | None = None
        self._truncated = False
        self._verdict: Verdict | None = None

    def reset(self, **row: Any) -> None:
        """Begin the episode of ``row["task_id"]`` in a fresh session; raises InfrastructureError."""
        self._close()
        self._fault = None
        self._verdict = None
        self._calls = []
        self._task_id = row["task_id"]
        self._session = self._gym.open(self._task_id)

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        assert self._session is not None, "TRL resets an environment before it calls a tool"
        written = arguments.get(AS_WRITTEN, arguments)
        text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
        try:
            observation = self._session.call(tool, text)
        except InfrastructureError as fault:
            # TRL shows the model whatever is raised here; the run ends where _raise_fault is asked.
            self._fault = fault
            raise
        self._calls.append((ToolCall(tool, text), observation))
        return observation.text

    def _raise_fault(self) -> None:
        """Raise the infrastructure failure that TRL has swallowed, if there was one."""
        if self._fault is not None:
            raise self._fault

    def _verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """Judge the episode; raises InfrastructureError."""
        self._raise_fault()
        assert self._session is not None, "an episode is verified after it was reset"
        self._answer, self._truncated = answer, truncated
        self._verdict = self._session.verify(answer, truncated)
        return self._verdict

    def _close(self) -> None:
        """Release the session. Idempotent."""
        if self._session is not None:
            self._session.close()
            self._session = None


def environment_class(gym: BlockingGym, tasks: TaskSet) -> type[GymEnvironment]:
    """Return the class that TRL gets as ``environment_factory``: a method per tool, documented by its schema."""
    methods = {function["name"]: _method(function) for function in tasks.tools}
    return type("TaskEnvironment", (GymEnvironment,), {**methods, "_gym": gym, "__doc__": f"Episodes of {tasks.name}."})


class AnyTool(dict[str, Callable[..., str]]):
    """Tools by name, for TRL's loop: a name that the model made up is a call like any other, for the gym to judge."""

    def __init__(self, environment: GymEnvironment, tools: Mapping[str, Callable[..., str]]) -> None:
        super().__init__(tools)
        self._environment = environment

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., str]:
        return lambda **arguments: self._environment._call(name, arguments)


def _method(function: Mapping[str, Any]) -> Callable[..., str]:
    """Return a method that passes on whatever arguments the model gave; only its description is the schema's."""
    name, properties = function["name"], function["parameters"]["properties"]

    def method(self: GymEnvironment, **arguments: Any) -> str:
        return self._call(name, arguments)

    types = {parameter: PYTHON_TYPES[schema["type"]] for parameter, schema in properties.items()}
    parameters = [
        inspect.Parameter(parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for parameter, kind in types.items()
    ]
    slot = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = name
    method.__signature__ = inspect.Signature([slot, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = {**types, "return": str}
    described = "\n".join(f"    {parameter}: {schema['description']}" for parameter, schema in properties.items())
    method.__doc__ = f"{function['description']}\n\nArgs:\n{described}\n\nReturns:\n    What the tool shows."
    return method
