"""How an infrastructure failure leaves the server: through upstream as the text of an exception, or over HTTP."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gymqual.gyms.base import InfrastructureError, Kind, Scope


class Refusal(Exception):
    """An infrastructure failure on its way through upstream, which answers with the text of an exception."""

    def __init__(self, fault: InfrastructureError) -> None:
        super().__init__(json.dumps({"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}))


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what goes wrong inside into a Refusal; the text of an unexpected exception stays in the log."""
    try:
        yield
    except InfrastructureError as fault:
        if fault.kind is Kind.SERVICE_ERROR:
            print(f"service error: {fault.__cause__!r}", file=sys.stderr, flush=True)
        raise Refusal(fault) from None
    except Exception as error:
        print(f"service error: {error!r}", file=sys.stderr, flush=True)
        detail = "the server failed inside a step"
        raise Refusal(InfrastructureError(Kind.SERVICE_ERROR, Scope.ROLLOUT, detail)) from None


def protocol_fault(detail: str) -> InfrastructureError:
    """Return the fault of a request that is none; it breaks its rollout alone."""
    return InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, detail)


def fault_response(fault: InfrastructureError) -> Response:
    """Return the answer of a route of ours to a fault."""
    return JSONResponse({"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}, status_code=409)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a refusal that comes out of a route of upstream's."""
    # Upstream's HTTP routes step an environment that was never reset; that is no reason for a traceback.
    return JSONResponse(json.loads(str(error)), status_code=409)
