"""What stands between uvicorn and upstream's application: one route closed, and quiet ends of connections."""

from contextlib import suppress

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class NoMcp:
    """Answers upstream's MCP routes without a session behind them.

    They would offer no tool here, but ``openenv/session/create`` takes one of the slots and never gives it back.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, to whoever is still there."""

        async def send_if_there(message: Message) -> None:
            # uvicorn's word for a peer that is gone. The next receive says so too, and ends the session.
            with suppress(OSError):
                await send(message)

        await self._app(scope, receive, send_if_there if scope["type"] == "websocket" else send)
