"""The two tools: what a call is, how its arguments are read, and what it shows.

Whatever a model may write is answered by an observation, at worst an error observation: it is the
model's own failure and is scored, never an exception.
"""

import json
from typing import NamedTuple

from .calculator import CalculatorError, evaluate
from .tasks import FIELDS, Task

MAX_ARGUMENT_CHARS = 2000
MAX_TOOL_CHARS = 64
MAX_NESTING = 16
PARAMETERS = {"lookup": "record_id", "calculator": "expression"}
"""The tools and the one text parameter of each."""


class Observation(NamedTuple):
    """What the model sees of one call."""

    text: str
    is_error: bool


class Call(NamedTuple):
    """One call as the model wrote it: tool name and JSON text of the arguments."""

    tool: str
    arguments: str


class ArgumentError(ValueError):
    """There is no such tool, or its arguments are not a JSON object with exactly its one text parameter."""


def decode_arguments(tool: str, arguments: str) -> str:
    """Return the value of the tool's only parameter; raises ArgumentError with a German reason.

    Stricter than ``json.loads``: no NaN, no duplicate keys, bounded length and nesting, so that the
    same text is the same call in every gym.
    """
    parameter = PARAMETERS.get(tool)
    if parameter is None:
        raise ArgumentError("unbekanntes Werkzeug")
    if len(arguments) > MAX_ARGUMENT_CHARS:
        raise ArgumentError("Argumente zu lang")
    if arguments.count("{") + arguments.count("[") > MAX_NESTING:
        raise ArgumentError("Argumente zu tief verschachtelt")
    try:
        decoded = json.loads(arguments, object_pairs_hook=_unique, parse_constant=_refuse)
    except ValueError:
        raise ArgumentError("Argumente sind kein JSON-Objekt") from None
    if not isinstance(decoded, dict) or set(decoded) != {parameter} or not isinstance(decoded[parameter], str):
        raise ArgumentError(f"genau ein Text {parameter} erwartet")
    return decoded[parameter]


def is_well_formed(call: Call) -> bool:
    """Whether the call names a tool and gives it its one text parameter."""
    try:
        decode_arguments(call.tool, call.arguments)
    except ArgumentError:
        return False
    return True


def observe(task: Task, call: Call) -> Observation:
    """Return what this call shows: a pure function of (task, call)."""
    try:
        value = decode_arguments(call.tool, call.arguments)
        if call.tool == "calculator":
            return Observation(evaluate(value).text, is_error=False)
        if value != task.record_id:
            raise ArgumentError("unbekannter Datensatz")
    except (ArgumentError, CalculatorError) as error:
        return Observation(as_json({"fehler": str(error)}), is_error=True)
    return Observation(as_json(dict(zip(FIELDS, task.quantities, strict=True))), is_error=False)


def as_json(value: dict[str, object]) -> str:
    """Compact JSON with umlauts as they are: the form of every observation that is not a number."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    decoded = dict(pairs)
    if len(decoded) != len(pairs):
        raise ValueError("duplicate key")
    return decoded


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
