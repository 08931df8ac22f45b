"""The NeMo Gym resources server: upstream's base class and web server around the frozen core.

Two doors lead to the same sessions:

- Upstream's native routes ``/seed_session``, ``/<tool>``, ``/verify``, ``/close_session`` with a signed
  cookie. Upstream's agent posts to whatever tool name the model wrote, so everything that a model can
  reach answers with an observation and is scored; the verdict is taken from the trajectory, and only
  after it agrees with what this server saw and showed.
- The bridge routes ``/bridge/*`` for the trainer's client (``bridge_routes``), guarded by a secret header.

Bodies are parsed by us (``bodies``) and not by FastAPI: a malformed call is an observation, never a 422 that echoes it.
"""

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from nemo_gym.base_resources_server import (
    AggregateMetricsRequest,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionResponse,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import ValidationError
from starlette.middleware.sessions import SessionMiddleware

from gymqual.gyms import loaded
from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import Task
from gymqual.gyms.german.tools import PARAMETERS, is_well_formed
from gymqual.gyms.german.verifier import Verdict
from gymqual.gyms.memory import freeze_start
from gymqual.gyms.nemo import rows
from gymqual.gyms.nemo.bodies import json_object, named_task, refuse, text_of, typed_seed
from gymqual.gyms.nemo.bridge_routes import BridgedServer
from gymqual.gyms.nemo.models import GermanVerifyRequest, GermanVerifyResponse
from gymqual.gyms.nemo.sessions import ServedSession, fresh_session_id
from gymqual.gyms.nemo.trajectory import Trajectory, read_trajectory


class GermanOrdersServer(BridgedServer):
    """The German lookup/calculator task as a NeMo Gym resources server."""

    # ---- wiring ------------------------------------------------------------------------------------

    def setup_webserver(self) -> FastAPI:
        """Register upstream's routes, the tools, the bridge, and last the route for every other name."""
        app = super().setup_webserver()
        app.add_exception_handler(InfrastructureError, refuse)
        for tool in PARAMETERS:
            app.post(f"/{tool}")(self._native_tool(tool))
        for name, handler in self.bridge_routes().items():
            app.post(f"/bridge/{name}", include_in_schema=False)(self._guarded(f"bridge/{name}", handler))
        app.post("/{tool:path}", include_in_schema=False)(self._any_tool)
        freeze_start()
        return app

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Sign the cookie with a random secret and create no session for a request that has none.

        Upstream's secret is the server's name, so that anyone could forge a session, and upstream hands
        every stranger a fresh one, which would turn a lost session into an empty one.
        """
        app.state.nemo_gym_session_middleware_installed = True
        app.add_middleware(
            SessionMiddleware, secret_key=secrets.token_hex(32), session_cookie=f"{self.config.name}_session"
        )

    # ---- native routes -----------------------------------------------------------------------------

    async def seed_session(self, request: Request) -> Response:  # type: ignore[override]
        """Open a session for a dataset row (legacy body) or under a caller-assigned id (typed body)."""
        text = await text_of(request)
        body = json_object(text)
        typed = typed_seed(body)
        fields = typed.task_data if typed else body
        if "seal" not in fields:
            return self._observe(request, "seed_session", text)
        task = self._task_of_row(fields)
        if typed is None:
            session = self._sessions.open(fresh_session_id(), task)
            response: dict[str, Any] = {}
        else:
            # The episode is part of the owner: another attempt must not find the first one's session.
            session = self._sessions.open(typed.resources_session_id, task, owner=(typed.episode_id, task.task_id))
            response = ResourcesSeedSessionResponse(resources_session_id=session.session_id).model_dump()
        request.session[SESSION_ID_KEY] = session.session_id
        return JSONResponse(response)

    async def verify(self, request: Request) -> Response:  # type: ignore[override]
        """Judge the trajectory in the body, once it agrees with what this server saw and showed."""
        text = await text_of(request)
        body = json_object(text)
        session = self._session(request)
        if body.get("seal") != rows.seal(session.task.task_id, self._identity.core):
            return self._observe(request, "verify", text)
        try:
            GermanVerifyRequest.model_validate(body)
        except ValidationError as error:
            reason = f"the verify body has {error.error_count()} errors against upstream's schema"
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, reason) from None
        try:
            verdict = self.judge_trajectory(session, read_trajectory(body["response"]))
        except InfrastructureError as fault:
            masked = {
                "reward": 0.0,
                "mask_sample": True,
                "failure_kind": f"german_orders:{fault.kind}",
                "failure_reason": fault.detail,
                "strict": False,
                "outcome": "infrastructure",
            }
            return self._verify_response({**body, **masked})
        scored = {"reward": verdict.reward, "strict": verdict.strict, "outcome": verdict.outcome, "mask_sample": False}
        return self._verify_response({**body, **verdict.parts, **scored})

    @staticmethod
    def _verify_response(fields: dict[str, Any]) -> Response:
        return JSONResponse(GermanVerifyResponse.model_validate(fields).model_dump(mode="json"))

    def judge_trajectory(self, session: ServedSession, trajectory: Trajectory) -> Verdict:
        """Compare what the model was shown with what was served, and judge the calls as the model wrote them.

        Upstream's agent answers arguments that it cannot decode by itself, normalises names in its HTTP client
        and writes arguments anew. None of that may make a call better than it was written, and nothing that
        a model writes may make the two lists disagree: only a well-formed call has to have arrived.
        """
        session.raise_fault()
        if session.verdict is not None:
            return session.verdict
        served = iter([*session.shown, None])
        expected = next(served)
        for each in trajectory.calls:
            if each.shown is not None and each.shown == expected:
                expected = next(served)
            elif each.shown is not None and is_well_formed(each.call):
                raise self._disagreement(session, "the trajectory shows an observation that was not served")
        if expected is not None:
            raise self._disagreement(session, "the trajectory lacks an observation that was served")
        return session.verify(trajectory.answer, trajectory.truncated, [each.call for each in trajectory.calls])

    @staticmethod
    def _disagreement(session: ServedSession, detail: str) -> InfrastructureError:
        session.fault = InfrastructureError(Kind.REPLAY_DISAGREEMENT, Scope.ROLLOUT, detail)
        return session.fault

    async def close_resources_session(self, request: Request) -> Response:  # type: ignore[override]
        """Release a session; idempotent, also for an id that was never opened."""
        text = await text_of(request)
        try:
            body = ResourcesCloseSessionRequest.model_validate(json_object(text))
        except ValidationError:
            return self._observe(request, "close_session", text)
        # The environment server closes by an id that it knows. A model does not know its own.
        mine = request.session.get(SESSION_ID_KEY)
        if self._sessions.is_open(mine) and mine != body.resources_session_id:
            return self._observe(request, "close_session", text)
        self._sessions.close(body.resources_session_id)
        return JSONResponse(ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id).model_dump())

    async def aggregate_metrics(self, request: Request) -> Response:  # type: ignore[override]
        """Aggregate verify responses for upstream's collector, which has no session; a model's call has one."""
        text = await text_of(request)
        if SESSION_ID_KEY in request.session:
            return self._observe(request, "aggregate_metrics", text)
        try:
            body = AggregateMetricsRequest.model_validate(json_object(text))
        except ValidationError:
            raise InfrastructureError(Kind.PROTOCOL, Scope.SERVICE, "not upstream's aggregate-metrics body") from None
        return JSONResponse((await super().aggregate_metrics(body)).model_dump(mode="json"))

    def _native_tool(self, tool: str) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            return self._observe(request, tool, await text_of(request))

        handler.__name__ = tool
        handler.__doc__ = f"The model's tool {tool}."
        return handler

    async def _any_tool(self, request: Request) -> Response:
        return self._observe(request, request.path_params["tool"], await text_of(request))

    def _observe(self, request: Request, tool: str, arguments: str) -> Response:
        # A query is part of the name the model wrote: "lookup?x=1" is not the tool "lookup".
        name = f"{tool}?{request.url.query}" if request.url.query else tool
        return PlainTextResponse(self._session(request).call(name, arguments).text)

    def _session(self, request: Request) -> ServedSession:
        return self._sessions.get(request.session.get(SESSION_ID_KEY))

    def _task_of_row(self, fields: dict[str, Any]) -> Task:
        task = named_task(fields.get("task_id"))
        if fields.get("core") != self._identity.core or fields["seal"] != rows.seal(task.task_id, self._identity.core):
            raise InfrastructureError(
                Kind.IDENTITY_CHANGED, Scope.SERVICE, "the dataset row was made for another version of the task core"
            )
        return task


def main(server: type[GermanOrdersServer], entry: Path) -> None:
    """Run a server class by upstream's own web server; ``entry`` is the script that this process runs."""
    loaded.record(entry)
    server.run_webserver()
