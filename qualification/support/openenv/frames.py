"""Every way to misuse the WebSocket, and what each must come to."""

import json
from collections.abc import Callable
from typing import Any

from gymqual.gyms.openenv.launch import MAX_MESSAGE_BYTES
from gymqual.qualification.support.openenv.wire import Socket, kind

SCORED, REFUSED, LOST = "scored", "refused", "lost"

Frame = str | bytes | dict[str, Any]


def _step(**data: Any) -> dict[str, Any]:
    return {"type": "step", "data": data}


def _reset(**data: Any) -> dict[str, Any]:
    return {"type": "reset", "data": data}


MISUSES: dict[str, tuple[Frame, str, str]] = {
    "no JSON": ("{not json", REFUSED, "INVALID_JSON"),
    "unknown type": ({"type": "jump"}, REFUSED, "UNKNOWN_TYPE"),
    "extra key on the frame": ({"type": "state", "x": 1}, REFUSED, "VALIDATION_ERROR"),
    "null data": ({"type": "reset", "data": None}, REFUSED, "VALIDATION_ERROR"),
    "state with data": ({"type": "state", "data": {}}, REFUSED, "VALIDATION_ERROR"),
    "extra key in the action": (_step(tool="lookup", arguments="{}", x=1), REFUSED, "VALIDATION_ERROR"),
    "verification without a secret": (_step(verification={"answer": "1"}), REFUSED, "VALIDATION_ERROR"),
    "empty action": (_step(), REFUSED, "protocol"),
    "a list for a tool": (_step(tool=["lookup"], arguments="{}"), REFUSED, "protocol"),
    "an object for arguments": (_step(tool="lookup", arguments={}), REFUSED, "protocol"),
    "call and verification": (
        _step(tool="lookup", arguments="{}", verification={"secret": "x"}),
        REFUSED,
        "protocol",
    ),
    "a wrong secret": (_step(verification={"secret": "x", "answer": "1"}), REFUSED, "protocol"),
    "a secret with half a character": (_step(verification={"secret": "\ud800"}), REFUSED, "protocol"),
    "call of an MCP tool": (
        {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}},
        REFUSED,
        "mcp",
    ),
    "a text for a seed": (_reset(seed="abc"), REFUSED, "protocol"),
    "a negative seed": (_reset(seed=-1), REFUSED, "protocol"),
    "an unknown task": (_reset(task_id="v1/dev/0/x"), REFUSED, "protocol"),
    "an unknown field of reset": (_reset(task="v1/dev/0/0"), REFUSED, "protocol"),
    "a short episode id": (_reset(episode_id="1"), REFUSED, "protocol"),
    "another identity": (_reset(identity="0" * 64), REFUSED, "identity_changed"),
    "an unknown tool": (_step(tool="verify", arguments="{}", call_id="1"), SCORED, ""),
    "half a character in a tool": (_step(tool="\ud800", arguments="{}"), SCORED, ""),
    "half a character in arguments": (_step(tool="lookup", arguments='{"record_id": "\ud800"}'), SCORED, ""),
    "a megabyte of arguments": (_step(tool="calculator", arguments="1" * 2**20), SCORED, ""),
    "a list": ("[]", LOST, "SESSION_ERROR"),
    "null": ("null", LOST, "SESSION_ERROR"),
    "a number": ("7", LOST, "SESSION_ERROR"),
    "bytes": (b"{}", LOST, "SESSION_ERROR"),
    "more than a frame holds": ("1" * (MAX_MESSAGE_BYTES + 1), LOST, "closed"),
}
"""Name to (frame, class, kind of failure or upstream's code).

Upstream ends a session over JSON that is no object and over binary frames. No model can write those: it writes
text inside of a call, and that is scored.
"""


def consequences(begin: Callable[[], Socket], frame: Frame) -> tuple[str, str]:
    """Send a misuse to a fresh session; return its class and the kind of failure or code it was answered with."""
    session = begin()
    answer = session.send(frame)
    if answer["type"] == "observation":
        return SCORED if answer["data"]["observation"]["is_error"] else "done", ""
    before = session.send({"type": "state"})
    if before["type"] == "closed":
        return LOST, kind(answer)
    counted = before["data"]["step_count"]
    works = session.send(_step(tool="calculator", arguments=json.dumps({"expression": "3*4"}), call_id="after"))
    intact = works["type"] == "observation" and works["data"]["observation"]["text"] == "12" and counted == 0
    return REFUSED if intact else "damaged", kind(answer)
