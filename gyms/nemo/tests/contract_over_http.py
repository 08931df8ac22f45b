"""Upstream's own session contract against a running server, over its real socket.

Upstream's checker drives an ASGI app in process. The app it gets here forwards every request to the server
at the given URL, so that the contract is judged by upstream and the answers come from the wire.

    python -P contract_over_http.py URL CORE_DIGEST
"""

import secrets
import sys

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.episode_types import EpisodeId, TaskId
from nemo_gym.testing.session_conformance import check_resources_session_contract

from gymqual.gyms.nemo import rows

TASK = "v1/dev/0/0"


def forwarder(url: str) -> FastAPI:
    """Return an app that answers as the server at ``url`` does."""
    app = FastAPI()

    @app.post("/{path:path}")
    async def forward(path: str, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name in ("content-type", "cookie")}
        # Upstream's checker runs an event loop per request, so that no client can live longer.
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as server:
            answer = await server.post(f"/{path}", content=await request.body(), headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name in ("content-type", "set-cookie")}
        return Response(answer.content, answer.status_code, kept)

    return app


if __name__ == "__main__":
    session = f"contract-{secrets.token_hex(16)}"
    seed = ResourcesSeedSessionRequest(
        resources_session_id=session,
        episode_id=EpisodeId(rollout_id=session),
        task_id=TaskId(taskset="german_orders", task_id=TASK),
        task_data=rows.task_fields(TASK, sys.argv[2]),
    )
    try:
        check_resources_session_contract(forwarder(sys.argv[1]), seed, keeps_state=True)
    except AssertionError as violation:
        print(f"violated: {violation}")
        sys.exit(1)
    print("kept")
