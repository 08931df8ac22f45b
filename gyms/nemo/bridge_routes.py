"""The door of the trainer's client: what a server process is, its sessions, and the guarded routes ``/bridge/*``.

Without the secret they are just another unknown tool.
"""

import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from nemo_gym.base_resources_server import SimpleResourcesServer
from pydantic import PrivateAttr

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope
from gymqual.gyms.german_orders import as_verdict
from gymqual.gyms.identity import Upstream, identify
from gymqual.gyms.launch import NONCE_VARIABLE, SECRET_HEADER, SECRET_VARIABLE
from gymqual.gyms.nemo.bodies import json_object, named_task, refuse, text_of
from gymqual.gyms.nemo.launch import IDENTITY_HEADER
from gymqual.gyms.nemo.models import GermanOrdersConfig
from gymqual.gyms.nemo.sessions import SessionStore
from gymqual.gyms.served import Injected

UPSTREAM = Upstream("nemo-gym", "nemo_gym", "NVIDIA-NeMo/Gym 720b5f3, equality unverified")

Handler = Callable[[dict[str, Any]], Response]


class BridgedServer(SimpleResourcesServer):
    """A resources server whose sessions a trainer's client may open, play and close."""

    ray_enabled: ClassVar[bool | None] = False
    config: GermanOrdersConfig
    _sessions: SessionStore = PrivateAttr()
    _identity: GymIdentity = PrivateAttr()
    _nonce: str = PrivateAttr()
    _secret: str = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Take identity and secrets; a server started by hand without a secret has closed bridge routes."""
        super().model_post_init(context)
        self._sessions = SessionStore(self.config.capacity, self.config.session_ttl_s)
        self._nonce = os.environ.get(NONCE_VARIABLE, "")
        self._secret = os.environ.pop(SECRET_VARIABLE, "") or secrets.token_hex(16)
        self._identity = identify("nemo", UPSTREAM)

    def identity(self) -> GymIdentity:
        """Return what this server is."""
        return self._identity

    def bridge_routes(self) -> dict[str, Handler]:
        """Return the guarded routes by name; each handler is synchronous and so never interleaves."""
        return {
            "identity": self._bridge_identity,
            "state": self._bridge_state,
            "open": self._bridge_open,
            "call": self._bridge_call,
            "verify": self._bridge_verify,
            "close": self._bridge_close,
            "fault": self._bridge_fault,
        }

    def _guarded(self, name: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            text = await text_of(request)
            offered = request.headers.get(SECRET_HEADER, "")
            if not secrets.compare_digest(offered.encode(), self._secret.encode()):
                return self._observe(request, name, text)
            try:
                answer = handler(json_object(text))
            except InfrastructureError as refusal:
                answer = await refuse(request, refusal)
            answer.headers[IDENTITY_HEADER] = f"{self.identity().digest} {self._nonce}/{os.getpid()}"
            return answer

        return guarded

    def _observe(self, request: Request, tool: str, arguments: str) -> Response:
        """Answer a model's call of a tool, known or not."""
        raise NotImplementedError

    def _bridge_identity(self, body: dict[str, Any]) -> Response:
        process = {
            "nonce": self._nonce,
            "pid": os.getpid(),
            "bases": [f"{base.__module__}.{base.__qualname__}" for base in type(self).__mro__],
        }
        return JSONResponse({"identity": self.identity().to_json(), "process": process})

    def _bridge_state(self, body: dict[str, Any]) -> Response:
        return JSONResponse(self._sessions.state())

    def _bridge_open(self, body: dict[str, Any]) -> Response:
        if body.get("identity") != self.identity().digest:
            raise InfrastructureError(
                Kind.IDENTITY_CHANGED, Scope.SERVICE, "this server is not the one that was agreed"
            )
        session_id = body.get("session_id")
        if not isinstance(session_id, str) or len(session_id) < 32:
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "session_id must be text of at least 128 bits")
        self._sessions.open(session_id, named_task(body.get("task_id")))
        return JSONResponse({})

    def _bridge_call(self, body: dict[str, Any]) -> Response:
        session = self._sessions.get(body.get("session_id"))
        tool, arguments, call_id = body.get("tool"), body.get("arguments"), body.get("call_id")
        if not (isinstance(tool, str) and isinstance(arguments, str) and isinstance(call_id, str) and call_id):
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "tool, arguments and call_id must be text")
        observation = session.call(tool, arguments, call_id)
        return JSONResponse({"text": observation.text, "is_error": observation.is_error})

    def _bridge_verify(self, body: dict[str, Any]) -> Response:
        session = self._sessions.get(body.get("session_id"))
        answer, truncated = body.get("answer"), body.get("truncated", False)
        if not (answer is None or isinstance(answer, str)) or not isinstance(truncated, bool):
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "answer must be text or null, truncated a boolean")
        return JSONResponse(asdict(as_verdict(session.verify(answer, truncated))))

    def _bridge_close(self, body: dict[str, Any]) -> Response:
        session_id = body.get("session_id")
        if not isinstance(session_id, str):
            raise InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, "session_id must be text")
        self._sessions.close(session_id)
        return JSONResponse({})

    def _bridge_fault(self, body: dict[str, Any]) -> Response:
        self._sessions.get(body.get("session_id")).injected = Injected(fail=True)
        return JSONResponse({})
