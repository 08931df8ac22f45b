"""The OpenEnv server process: upstream's WebSocket server, its sessions, and the bridge routes."""

import argparse
import os
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import ConcurrencyConfig

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import UnknownTask, find_task
from gymqual.gyms.identity import identify
from gymqual.gyms.launch import DEFAULT_CAPACITY, NONCE_VARIABLE, SECRET_HEADER, SECRET_VARIABLE, is_secret
from gymqual.gyms.memory import freeze_start
from gymqual.gyms.openenv.environment import OrdersEnvironment
from gymqual.gyms.openenv.launch import DEFAULT_PING_INTERVAL_S, DEFAULT_PING_TIMEOUT_S, MAX_MESSAGE_BYTES, UPSTREAM
from gymqual.gyms.openenv.middleware import NoMcp, QuietEnds
from gymqual.gyms.openenv.models import OrdersAction, OrdersObservation, OrdersState
from gymqual.gyms.openenv.refusals import Refusal, answer_refusal, fault_response, protocol_fault
from gymqual.gyms.served import Injected, ServedEpisode

REMEMBERED_IDS = 100_000
"""Episode ids that are kept so that none is ever used again."""

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class OrdersServer(HTTPEnvServer):
    """Upstream's server, whose sessions live and end with their own socket and by nothing else.

    A session counts as attached from its first moment. So upstream's idle reaper, ``?session_id=`` and the MCP
    method ``openenv/session/close`` leave it alone, which they would otherwise take for abandoned.
    """

    async def _create_session(self) -> tuple[str, Environment]:
        session_id, environment = await super()._create_session()
        self._session_websocket_attachments.add(session_id)
        return session_id, environment


class OrdersService:
    """What one server process shares between its sessions."""

    def __init__(self, capacity: int) -> None:
        self.identity: GymIdentity = identify("openenv", UPSTREAM)
        self.nonce = os.environ.get(NONCE_VARIABLE, "")
        self.secret = os.environ.pop(SECRET_VARIABLE, "") or secrets.token_hex(16)
        self.process = f"{self.nonce}/{os.getpid()}"
        self._lock = threading.Lock()
        self._episodes: dict[str, ServedEpisode] = {}
        self._used: OrderedDict[str, None] = OrderedDict()
        self._begun = 0
        self.server = OrdersServer(
            lambda: self.new_environment(),
            OrdersAction,
            OrdersObservation,
            concurrency_config=ConcurrencyConfig(max_concurrent_envs=capacity, session_timeout=None),
            env_name="german_orders",
            state_cls=OrdersState,
        )
        self.app = FastAPI(title="German orders", version="1")
        self.app.add_exception_handler(Refusal, answer_refusal)
        self.server.register_routes(self.app)
        for name, handler in self.bridge_routes().items():
            self.app.post(f"/bridge/{name}", include_in_schema=False)(self._guarded(handler))
        self.app.add_middleware(NoMcp)
        self.app.add_middleware(QuietEnds)

    # ---- for environments, each in a thread of its own -----------------------------------------------

    def new_environment(self) -> OrdersEnvironment:
        """Return the environment of a new session."""
        return OrdersEnvironment(self)

    def new_episode(self, task_id: str) -> ServedEpisode:
        """Return a fresh episode; raises InfrastructureError for an unknown task."""
        try:
            return ServedEpisode(find_task(task_id))
        except UnknownTask as error:
            raise protocol_fault(str(error)) from None

    def register(self, episode_id: object, episode: ServedEpisode) -> str:
        """Put an episode under its id, which must be new; raises InfrastructureError."""
        if not isinstance(episode_id, str) or len(episode_id) < 32:
            raise protocol_fault("episode_id must be text of at least 128 bits")
        with self._lock:
            if episode_id in self._used:
                raise protocol_fault("the episode id was used before")
            self._used[episode_id] = None
            if len(self._used) > REMEMBERED_IDS:
                self._used.popitem(last=False)
            self._episodes[episode_id] = episode
            self._begun += 1
        return episode_id

    def unregister(self, episode_id: str | None) -> None:
        """Forget an episode that has ended. Idempotent."""
        with self._lock:
            self._episodes.pop(episode_id or "", None)

    # ---- bridge routes, for the owner's eyes ----------------------------------------------------------

    def bridge_routes(self) -> dict[str, Handler]:
        """Return the guarded routes by name."""
        return {"identity": self._bridge_identity, "state": self._bridge_state, "inject": self._bridge_inject}

    def _guarded(self, handler: Handler) -> Callable[..., Any]:
        async def guarded(request: Request) -> Response:
            if not is_secret(request.headers.get(SECRET_HEADER), self.secret):
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            try:
                return JSONResponse(handler(await request.json()))
            except InfrastructureError as fault:
                return fault_response(fault)

        return guarded

    def _bridge_identity(self, body: dict[str, Any]) -> dict[str, Any]:
        process = {
            "nonce": self.nonce,
            "pid": os.getpid(),
            "gradio": _is_loaded("gradio"),
            "torch": _is_loaded("torch"),
        }
        return {"identity": self.identity.to_json(), "process": process}

    def _bridge_state(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "open": self.server.active_sessions,
            "capacity": self.server.max_concurrent_envs,
            "episodes": len(self._episodes),
            "begun": self._begun,
            "session_timeout": self.server.concurrency_config.session_timeout,
        }

    def _bridge_inject(self, body: dict[str, Any]) -> dict[str, Any]:
        episode = self._episodes.get(body["episode_id"])
        if episode is None:
            raise InfrastructureError(Kind.SESSION_LOST, Scope.SESSION, "there is no open episode of this id")
        episode.injected = Injected(delay_s=body.get("delay_s", 0.0), fail=body.get("fail", False))
        return {}


def _is_loaded(module: str) -> bool:
    return sys.modules.get(module) is not None


def main(service: type[OrdersService], arguments: list[str] | None = None) -> None:
    """Serve until a signal ends it; ``service`` is the class that serves."""
    parser = argparse.ArgumentParser(prog="python -m gymqual.gyms.openenv.app")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--capacity", type=int, default=DEFAULT_CAPACITY)
    parser.add_argument("--ping-interval", type=float, default=DEFAULT_PING_INTERVAL_S)
    parser.add_argument("--ping-timeout", type=float, default=DEFAULT_PING_TIMEOUT_S)
    options = parser.parse_args(arguments)
    app = service(options.capacity).app
    freeze_start()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.port,
        access_log=False,
        log_level="warning",
        # Nothing to gain on loopback, and a step spent a third of its time on it.
        ws_per_message_deflate=False,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=options.ping_interval,
        ws_ping_timeout=options.ping_timeout,
    )
