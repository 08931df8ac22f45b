"""Reading what a request says, whatever it is, and refusing what the infrastructure got wrong."""

import json
import sys
from typing import Any, cast

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from pydantic import ValidationError

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import Task, UnknownTask, find_task

STATUS = {
    Kind.SESSION_LOST: 404,
    Kind.CAPACITY: 503,
    Kind.IDENTITY_CHANGED: 409,
    Kind.PROTOCOL: 400,
    Kind.REPLAY_DISAGREEMENT: 500,
    Kind.SERVICE_ERROR: 500,
}
"""HTTP status of each kind of infrastructure failure that a server can notice."""


async def refuse(request: Request, error: Exception) -> Response:
    """Answer an infrastructure failure by its kind; what caused it goes to the log, not to whoever asked."""
    fault = cast(InfrastructureError, error)
    if fault.__cause__ is not None and fault.kind is Kind.SERVICE_ERROR:
        print(f"service error: {fault.__cause__!r}", file=sys.stderr, flush=True)
    return JSONResponse(
        {"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}, status_code=STATUS[fault.kind]
    )


async def text_of(request: Request) -> str:
    """Return a request's body as text, whatever its bytes are."""
    # Bytes that are not UTF-8 cannot be valid arguments; their escapes keep them refused and replayable.
    return (await request.body()).decode("utf-8", errors="backslashreplace")


def json_object(text: str) -> dict[str, Any]:
    """Return a body's JSON object; empty for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def typed_seed(body: dict[str, Any]) -> ResourcesSeedSessionRequest | None:
    """Return upstream's typed seed body, or None where it is the legacy one."""
    try:
        return ResourcesSeedSessionRequest.model_validate(body)
    except ValidationError:
        return None


def named_task(task_id: object) -> Task:
    """Return the task of an id; raises InfrastructureError for one that is none."""
    try:
        return find_task(task_id if isinstance(task_id, str) else "")
    except UnknownTask as error:
        raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, str(error)) from None
