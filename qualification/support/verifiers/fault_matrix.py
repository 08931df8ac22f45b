"""The fault matrix: what can break a rollout, and twins of each that a model is to blame for."""

from collections.abc import Callable, Sequence
from typing import Any

from gymqual.gyms.base import ToolCall
from gymqual.qualification.support.verifiers.model_server import Break, Reply, Says, says

Case = Callable[[Any], tuple[Sequence[Reply], dict[str, Any]]]


def cases() -> dict[str, Case]:
    """Return the fault matrix by name: what the model server says, and what else goes wrong.

    ``first``: at the first request of a rollout, ``later``: at the second.
    """
    breaks = [each for each in Break if each is not Break.ENDLESS]
    matrix: dict[str, Case] = {}
    for each in breaks:
        matrix[f"first {each}"] = lambda scripts, each=each: ([each], {})
        matrix[f"later {each}"] = lambda scripts, each=each: ([says(scripts["oracle"])[0], each], {})
    for fault in ("tool_raises", "tool_hangs", "setup_hangs", "scoring_hangs", "tool_server_exits"):
        matrix[fault] = lambda scripts, fault=fault: (says(scripts["oracle"]), {"fault": fault})
    matrix["refused"] = lambda scripts: (says(scripts["oracle"]), {"client": {"base_url": NOBODY}})
    for name, replies in _TWINS.items():
        matrix[name] = lambda scripts, replies=replies: (replies(scripts), {})
    return matrix


NOBODY = "http://127.0.0.1:9/v1"
"""The discard port: nothing listens there."""

_TWINS: dict[str, Callable[[Any], Sequence[Reply]]] = {
    "solved": lambda scripts: says(scripts["oracle"]),
    "solved after malformed calls": lambda scripts: [*MALFORMED, *says(scripts["oracle"])],
    "says nothing": lambda scripts: [Says("")],
    "wrong number": lambda scripts: says(scripts["wrong"]),
    "cut by its length": lambda scripts: [*says(scripts["oracle"])[:-1], Says("4", finish_reason="length")],
    "refused after a malformed call": lambda scripts: [MALFORMED[0], Break.HTTP_400],
    "writes what JSON cannot hold": lambda scripts: [
        Says(calls=(ToolCall("calculator", '{"expression": 1e999}'),)),
        *says(scripts["oracle"]),
    ],
    "nested too deeply": lambda scripts: [Says(calls=(ToolCall("lookup", "[" * 5000),)), *says(scripts["oracle"])],
    "overflows its context": lambda scripts: [says(scripts["oracle"])[0], Break.OVERFLOW],
    "never stops writing": lambda scripts: [says(scripts["oracle"])[0], Break.ENDLESS],
    "never stops calling": lambda scripts: [says(scripts["oracle"])[0]],
}
MALFORMED = [
    Says(calls=(ToolCall(tool, arguments),))
    for tool, arguments in (
        ("lookup", "{"),
        ("lookup", '["L-1000"]'),
        ("lookup", '{"id": "L-1000"}'),
        ("calculator", '{"expression": "9**9**9"}'),
        ("nachschlagen", "{}"),
    )
]
