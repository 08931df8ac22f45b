"""The OpenEnv server: upstream's WebSocket server and environment base class around the frozen core.

A model's call is a step and always gives an observation. The step that ends the episode carries the client's
secret; without it, it is refused and the episode goes on. What upstream leaves to an environment is done here:
nothing is stepped after the verdict, which never changes, and an error names no more than its kind.
"""

import argparse
import json
import os
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import UnknownTask, find_task
from gymqual.gyms.german_orders import as_verdict
from gymqual.gyms.identity import identify
from gymqual.gyms.launch import DEFAULT_CAPACITY, NONCE_VARIABLE, SECRET_HEADER, SECRET_VARIABLE
from gymqual.gyms.memory import freeze_start
from gymqual.gyms.openenv.launch import DEFAULT_PING_INTERVAL_S, DEFAULT_PING_TIMEOUT_S, MAX_MESSAGE_BYTES, UPSTREAM
from gymqual.gyms.openenv.models import OrdersAction, OrdersObservation, OrdersState, Verification
from gymqual.gyms.served import Injected, ServedEpisode

REMEMBERED_IDS = 100_000
"""Episode ids that are kept so that none is ever used again."""

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Refusal(Exception):
    """An infrastructure failure on its way through upstream, which answers with the text of an exception."""

    def __init__(self, fault: InfrastructureError) -> None:
        super().__init__(json.dumps({"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}))


class OrdersEnvironment(Environment[OrdersAction, OrdersObservation, OrdersState]):
    """One WebSocket session: one episode at a time. Upstream gives each its own thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: "OrdersService") -> None:
        super().__init__()
        self._service = service
        self._episode_id: str | None = None
        self._episode: ServedEpisode | None = None

    def reset(
        self,
        seed: Any = None,
        episode_id: Any = None,
        task_id: Any = None,
        identity: Any = None,
        **unknown: Any,
    ) -> OrdersObservation:
        """Begin an episode of ``task_id``, or else of the training task that ``seed`` names (0 by default).

        Its id is ``episode_id``, at least 128 bits and never seen before, or a fresh one. With ``identity``, the
        digest that was agreed, a server that is another one refuses.
        """
        with _refusals():
            if unknown:
                raise _protocol(f"reset does not know {', '.join(sorted(map(str, unknown)))}")
            service = self._service
            if identity is not None and identity != service.identity.digest:
                raise InfrastructureError(
                    Kind.IDENTITY_CHANGED, Scope.SERVICE, "this server is not the one that was agreed"
                )
            episode = service.new_episode(_task_id(seed, task_id))
            name = service.register(secrets.token_hex(16) if episode_id is None else episode_id, episode)
            # Only now, so that a refused reset leaves the running episode as it was.
            service.unregister(self._episode_id)
            self._episode_id, self._episode = name, episode
            return OrdersObservation(
                reply_to=name, messages=episode.task.prompt, served_by=f"{service.identity.digest} {service.process}"
            )

    def step(self, action: OrdersAction, timeout_s: float | None = None, **unknown: Any) -> OrdersObservation:
        """Execute one call, or verify; raises Refusal, and after the verdict always for a call."""
        with _refusals():
            if self._episode is None:
                raise _protocol("no episode has begun; reset first")
            if action.verification is not None:
                if action.tool is not None or action.arguments is not None:
                    raise _protocol("a step is either a call or a verification")
                return self._verify(self._episode, action.verification, action.call_id or "")
            if not isinstance(action.tool, str) or not isinstance(action.arguments, str):
                raise _protocol("a call needs the texts tool and arguments")
            observation = self._episode.call(action.tool, action.arguments, action.call_id)
            return OrdersObservation(
                text=observation.text, is_error=observation.is_error, reply_to=action.call_id or ""
            )

    def _verify(self, episode: ServedEpisode, verification: Verification, call_id: str) -> OrdersObservation:
        if not _equal(verification.secret, self._service.secret):
            raise _protocol("a verification needs the client's secret")
        if not isinstance(verification.answer, str | None):
            raise _protocol("answer must be text or null")
        verdict = as_verdict(episode.verify(verification.answer, verification.truncated))
        return OrdersObservation(
            reply_to=call_id,
            done=verdict.done,
            reward=verdict.reward,
            verdict={**asdict(verdict), "parts": dict(verdict.parts)},
        )

    @property
    def state(self) -> OrdersState:
        """Where the episode is; before the first reset an empty state."""
        if self._episode is None:
            return OrdersState()
        verdict = self._episode.verdict
        return OrdersState(
            episode_id=self._episode_id,
            step_count=len(self._episode.shown),
            task_id=self._episode.task.task_id,
            done=verdict is not None,
            reward=verdict.reward if verdict else None,
            outcome=verdict.outcome if verdict else None,
        )

    def close(self) -> None:
        """End the episode with its session."""
        self._service.unregister(self._episode_id)
        self._episode_id = self._episode = None

    def get_metadata(self) -> EnvironmentMetadata:
        """Describe the environment."""
        return EnvironmentMetadata(
            name="german_orders",
            description="Synthetic German orders with lookup and calculator; a development task, not a benchmark",
            version="1",
        )


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
        self.app.add_exception_handler(Refusal, _answer_refusal)
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
            raise _protocol(str(error)) from None

    def register(self, episode_id: object, episode: ServedEpisode) -> str:
        """Put an episode under its id, which must be new; raises InfrastructureError."""
        if not isinstance(episode_id, str) or len(episode_id) < 32:
            raise _protocol("episode_id must be text of at least 128 bits")
        with self._lock:
            if episode_id in self._used:
                raise _protocol("the episode id was used before")
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
            if not _equal(request.headers.get(SECRET_HEADER), self.secret):
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            try:
                return JSONResponse(handler(await request.json()))
            except InfrastructureError as fault:
                return _fault_response(fault)

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


class NoMcp:
    """Answers upstream's MCP routes without a session behind them.

    They would offer no tool here, but ``openenv/session/create`` takes one of the slots and never gives it back.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer an MCP route, and let the application answer everything else."""
        if scope["type"] not in ("http", "websocket") or scope["path"].rstrip("/") != "/mcp":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no MCP here"})
        else:
            error = {"code": -32601, "message": "this environment speaks no MCP"}
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})(scope, receive, send)


class QuietEnds:
    """Lets the answer to a client that has left go nowhere; upstream would try again, and log a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Let the application answer, to whoever is still there."""

        async def send_if_there(message: Message) -> None:
            # uvicorn's word for a peer that is gone. The next receive says so too, and ends the session.
            with suppress(OSError):
                await send(message)

        await self._app(scope, receive, send_if_there if scope["type"] == "websocket" else send)


@contextmanager
def _refusals() -> Iterator[None]:
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


def _task_id(seed: Any, task_id: Any) -> str:
    if task_id is not None:
        return task_id if isinstance(task_id, str) else ""
    if seed is None:
        seed = 0
    # Upstream checks seeds on its HTTP route only.
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise _protocol("seed must be a whole number of at least 0")
    return f"v1/train/{seed}/0"


def _equal(offered: object, secret: str) -> bool:
    text = offered if isinstance(offered, str) else ""
    return secrets.compare_digest(text.encode("utf-8", "surrogatepass"), secret.encode())


def _protocol(detail: str) -> InfrastructureError:
    return InfrastructureError(Kind.PROTOCOL, Scope.ROLLOUT, detail)


def _fault_response(fault: InfrastructureError) -> Response:
    return JSONResponse({"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}, status_code=409)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    # Upstream's HTTP routes step an environment that was never reset; that is no reason for a traceback.
    return JSONResponse(json.loads(str(error)), status_code=409)


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
