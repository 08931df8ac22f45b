"""Pieces of what a served policy answers, in OpenAI's form, and how it reads what it is asked."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gymqual.trainer.serving.decode import Decoding, SampledToken

Body = TypeVar("Body", bound=BaseModel)


class ApiError(Exception):
    """An answer that says what is wrong, in OpenAI's form."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class AsciiResponse(JSONResponse):
    """JSON in ASCII: a policy may write half a character, which UTF-8 cannot carry."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content).encode("ascii")


def finish_reason(tokens: Sequence[SampledToken], decoding: Decoding) -> str:
    """Return why a reply ended, in OpenAI's word."""
    return "stop" if tokens[-1].id in decoding.stop_ids else "length"


def tool_call(function: dict[str, Any]) -> dict[str, Any]:
    """Return a parsed call as a message carries it, with a fresh id."""
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }


def usage(context: Sequence[int], tokens: Sequence[SampledToken]) -> dict[str, int]:
    """Count what was read and what was sampled."""
    return {
        "prompt_tokens": len(context),
        "completion_tokens": len(tokens),
        "total_tokens": len(context) + len(tokens),
    }


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def event(data: dict[str, Any]) -> str:
    """Return one server-sent event."""
    return f"data: {json.dumps(data)}\n\n"


async def read_body(request: Request, model: type[Body]) -> Body:
    """Read a request's body; raises ApiError that names the first field that is wrong."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        wrong = "not honoured here; leave it out" if first["type"] == "extra_forbidden" else first["msg"]
        raise ApiError(400, f"{field or 'the body'}: {wrong}", field or None) from None


async def refuse(request: Request, error: Exception) -> Response:
    """Answer an ApiError."""
    assert isinstance(error, ApiError)
    return AsciiResponse(error_body(error), error.status)


async def refuse_route(request: Request, error: Exception) -> Response:
    """Answer what the router refuses, such as an unknown path."""
    assert isinstance(error, HTTPException)
    named = f"{request.method} {request.url.path}: {error.detail}"
    return await refuse(request, ApiError(error.status_code, named))


async def nobody(request: Request, error: Exception) -> Response:
    """Answer a client that has left: no one reads it, and it is no failure of the server."""
    return Response(status_code=499)
