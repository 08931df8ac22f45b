"""The German lookup/calculator task as a ``TaskSet``: the core in the contract's terms."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gymqual.gyms.base import Observation, Replay, Script, ToolCall, Verdict
from gymqual.gyms.german import episode, verifier
from gymqual.gyms.german.tasks import find_task, make_task
from gymqual.gyms.german.tools import Call

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {parameter: {"type": "string", "description": meaning}},
            "required": [parameter],
            "additionalProperties": False,
        },
        "strict": True,
    }
    for name, description, parameter, meaning in (
        ("lookup", "Zeigt die Mengen eines Datensatzes.", "record_id", "Kennung des Datensatzes, z. B. L-1234"),
        ("calculator", "Rechnet exakt mit + - * / und Klammern.", "expression", "Rechenausdruck, z. B. 3*4-1"),
    )
)


class GermanOrders:
    """Synthetic German orders: a development task, not an upstream benchmark."""

    name = "german_orders"
    tools = TOOLS

    def prompt(self, task_id: str) -> list[dict[str, str]]:
        """Return the chat messages the model starts from."""
        return find_task(task_id).prompt

    def family(self, task_id: str) -> str:
        """Return the task's question family, for tables."""
        return find_task(task_id).formula.name

    def replay(self, task_id: str, calls: Sequence[ToolCall], answer: str | None, truncated: bool = False) -> Replay:
        """Run the episode through the core in this process."""
        observations, verdict = episode.replay(
            find_task(task_id), [Call(call.tool, call.arguments) for call in calls], answer, truncated
        )
        return Replay(tuple(Observation(*observation) for observation in observations), as_verdict(verdict))

    def secrets(self, task_id: str) -> tuple[str, ...]:
        """Return the hidden quantities and the answer, plain and with thousands points."""
        task = find_task(task_id)
        return tuple(form for number in (*task.quantities, task.answer) for form in (str(number), _grouped(number)))

    def scripts(self, task_id: str) -> Mapping[str, Script]:
        """Return the scripted episodes; ``foreign`` and ``guess`` are the near misses of ``oracle``."""
        task = find_task(task_id)
        look = _call("lookup", record_id=task.record_id)
        foreign = _call("lookup", record_id=make_task(task.split, task.seed, task.index + 1, task.pool).record_id)
        compute = _call("calculator", expression=task.formula.write(task.quantities))
        right, wrong = str(task.answer), str(task.answer + 1)
        malformed = (
            ToolCall("lookup", "{"),
            ToolCall("lookup", f'["{task.record_id}"]'),
            ToolCall("lookup", '{"id":1}'),
            _call("calculator", expression="9**9**9"),
            ToolCall("calculator", '{"expression":NaN}'),
            ToolCall("nachschlagen", "{}"),
        )
        scripts = (
            Script("oracle", (look, compute), right),
            Script("wrong", (look, compute), wrong),
            Script("noop", (), None),
            Script("malformed", malformed, "keine Ahnung"),
            Script("spam", tuple(_call("lookup", record_id=f"L-{number}") for number in range(1000, 1070)), right),
            Script("foreign", (foreign, look, compute), right),
            Script("guess", (), right),
            Script("no_calculation", (look,), right),
        )
        return {script.name: script for script in scripts}


def as_verdict(verdict: verifier.Verdict) -> Verdict:
    """Put the core's verdict into the contract's terms."""
    return Verdict(
        reward=verdict.reward,
        strict=verdict.strict,
        parts=verdict.parts,
        outcome=verdict.outcome,
        truncated=verdict.truncated,
    )


def _call(tool: str, **arguments: str) -> ToolCall:
    return ToolCall(tool, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", ".")
