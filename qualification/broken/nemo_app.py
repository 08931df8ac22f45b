"""The NeMo server with a switch: one defect at a time, each what a real server got wrong.

Runs in the gym's own stack beside ``app.py``. ``POST /bridge/defect {"name": ...}`` sets the switch.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded

loaded.install()

from fastapi import Request  # noqa: E402
from fastapi.responses import JSONResponse, Response  # noqa: E402

import gymqual.gyms.broken_core as core  # noqa: E402
from gymqual.gyms.base import InfrastructureError  # noqa: E402
from gymqual.gyms.german.tasks import find_task  # noqa: E402
from gymqual.gyms.german.verifier import Verdict  # noqa: E402
from gymqual.gyms.nemo.bridge_routes import Handler  # noqa: E402
from gymqual.gyms.nemo.server import GermanOrdersServer, main  # noqa: E402
from gymqual.gyms.nemo.sessions import ServedSession, SessionStore, fresh_session_id  # noqa: E402
from gymqual.gyms.nemo.trajectory import Trajectory  # noqa: E402


class BrokenStore(SessionStore):
    """A session store that can forget to expire."""

    defect = ""
    latest: ServedSession | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.by_task: dict[str, ServedSession] = {}

    def open(self, *arguments: Any, **named: Any) -> ServedSession:
        self.latest = session = super().open(*arguments, **named)
        # siblings_share_their_calls: state by task, so that the rollouts of a group work on one episode.
        if self.defect == "siblings_share_their_calls":
            first = self.by_task.setdefault(session.task.task_id, session)
            session.episode, session.shown = first.episode, first.shown
        return session

    def _expire(self) -> None:
        # abandoned_sessions_stay: OpenEnv #1000, slots freed only by a clean close.
        if self.defect != "abandoned_sessions_stay":
            super()._expire()


class BrokenServer(GermanOrdersServer):
    """The server under a defect."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._sessions = BrokenStore(self.config.capacity, self.config.session_ttl_s)

    @property
    def _store(self) -> BrokenStore:
        assert isinstance(self._sessions, BrokenStore)
        return self._sessions

    def bridge_routes(self) -> dict[str, Handler]:
        return {**super().bridge_routes(), "defect": self._switch}

    def _switch(self, body: dict[str, Any]) -> Response:
        self._store.defect = core.defect = body["name"]
        self._store.by_task.clear()
        # Raw rollouts leave their sessions to expiry: over many defects they would fill the server.
        for session_id in list(self._store._open):
            self._store.close(session_id)
        return JSONResponse({})

    def _bridge_identity(self, body: dict[str, Any]) -> Response:
        # identity_is_a_constant: digests shipped with a release instead of taken from what runs.
        if self._store.defect != "identity_is_a_constant":
            return super()._bridge_identity(body)
        real = self._identity
        self._identity = replace(real, core="0" * 64, sources=dict.fromkeys(real.sources, "0" * 64))
        try:
            return super()._bridge_identity(body)
        finally:
            self._identity = real

    async def close_resources_session(self, request: Request) -> Response:  # type: ignore[override]
        response = await super().close_resources_session(request)
        # closed_ids_are_forgotten: a seed that arrives late recreates the session it raced.
        if self._store.defect == "closed_ids_are_forgotten":
            self._store._gone.clear()
        return response

    def judge_trajectory(self, session: ServedSession, trajectory: Trajectory) -> Verdict:
        # verdict_follows_last_answer: OpenEnv leaves terminal immutability to the environment.
        if self._store.defect == "verdict_follows_last_answer":
            session.verdict = None
        verdict = super().judge_trajectory(session, trajectory)
        # the_number_alone_pays: a verifier that looks at the final number only.
        if self._store.defect == "the_number_alone_pays" and verdict.parts["answer"]:
            return replace(verdict, strict=True, outcome="solved")
        return verdict

    async def seed_session(self, request: Request) -> Response:  # type: ignore[override]
        response = await super().seed_session(request)
        # seed_returns_the_record: OpenEnv #611, ground truth serialised in a state answer.
        if self._store.defect == "seed_returns_the_record" and self._store.latest is not None:
            response.headers["x-record"] = json.dumps(self._store.latest.task.quantities)
        return response

    def _observe(self, request: Request, tool: str, arguments: str) -> Response:
        # malformed_is_a_422: upstream's usual handler with a pydantic body.
        if self._store.defect == "malformed_is_a_422":
            try:
                json.loads(arguments)
            except (ValueError, RecursionError):
                return JSONResponse({"detail": [{"type": "json_invalid", "input": arguments[:100]}]}, status_code=422)
        # fault_is_forgotten: NeMo Gym #1351, the next good call makes the session look healthy.
        if self._store.defect == "fault_is_forgotten":
            self._session(request).fault = None
        return super()._observe(request, tool, arguments)

    def _bridge_open(self, body: dict[str, Any]) -> Response:
        # identity_is_not_compared: whoever asks is served.
        if self._store.defect == "identity_is_not_compared":
            body = {**body, "identity": self.identity().digest}
        return super()._bridge_open(body)

    def _bridge_call(self, body: dict[str, Any]) -> Response:
        # retries_count_twice: a server that ignores call ids executes a repeated delivery again.
        if self._store.defect == "retries_count_twice":
            body = {**body, "call_id": fresh_session_id()}
        return super()._bridge_call(body)

    def _session(self, request: Request) -> ServedSession:
        # siblings_share_a_session: state of the process instead of the session.
        if self._store.defect == "siblings_share_a_session" and self._store.latest is not None:
            return self._store.latest
        try:
            return super()._session(request)
        except InfrastructureError:
            # lost_sessions_are_created: the setdefault of upstream's examples.
            if self._store.defect != "lost_sessions_are_created":
                raise
            return self._store.open(fresh_session_id(), find_task("v1/dev/0/0"))


if __name__ == "__main__":
    main(BrokenServer, Path(__file__))
