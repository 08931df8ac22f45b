"""The bridge: OpenEnv's SDK in a process and an interpreter of its own, between the trainer and the server.

Every connection of the trainer is one rollout and holds one WebSocket of the SDK's client, opened for it and
never again. The bridge adds nothing and decides nothing: it passes requests on one at a time and answers each
with the reply or with a typed failure. When the trainer ends, its connections end, and with them the server's
sessions; when the bridge ends, both sides see it.

    python -m gymqual.gyms.openenv.bridge --port PORT --url http://127.0.0.1:SERVER_PORT
"""

from pathlib import Path

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.openenv.launch import forbid_gradio  # noqa: E402

forbid_gradio()

import argparse  # noqa: E402
import asyncio  # noqa: E402
import os  # noqa: E402
import secrets  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from contextlib import suppress  # noqa: E402
from typing import Any, cast  # noqa: E402

import httpx  # noqa: E402

try:
    import uvloop
except ImportError:
    # Not to be had on every platform.
    uvloop = None

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope, read_identity  # noqa: E402
from gymqual.gyms.identity import identify  # noqa: E402
from gymqual.gyms.launch import NONCE_VARIABLE, SECRET_HEADER, SECRET_VARIABLE  # noqa: E402
from gymqual.gyms.memory import freeze_start  # noqa: E402
from gymqual.gyms.openenv.channel import PROTOCOL, FrameError, Unpacker, pack  # noqa: E402
from gymqual.gyms.openenv.launch import UPSTREAM  # noqa: E402
from gymqual.gyms.openenv.strict import StrictClient  # noqa: E402

HELLO_DEADLINE_S = 10.0
FAREWELL_S = 2.0
"""For closing a WebSocket politely; after that it is dropped."""


class Bridge:
    """One bridge process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.nonce = os.environ.get(NONCE_VARIABLE, "")
        self.secret = os.environ.pop(SECRET_VARIABLE, "") or secrets.token_hex(16)
        self.identity: GymIdentity = identify("openenv", UPSTREAM)

    async def serve(self, port: int) -> None:
        """Serve until a signal ends it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port)
        print(f"bridge on port {port} to {self.url}, pid {os.getpid()}", flush=True)
        await ended.wait()
        # The connections end with the process, and the server's sessions with them.
        server.close()

    def hello(self) -> dict[str, Any]:
        """Return what this bridge is."""
        process = {"nonce": self.nonce, "pid": os.getpid(), "python": sys.executable}
        modules = {name: sys.modules.get(name) is not None for name in ("gradio", "torch", "transformers", "trl")}
        return {"protocol": PROTOCOL, "process": process, "loaded": modules, "url": self.url}

    async def server_identity(self, deadline_s: float) -> dict[str, Any]:
        """Ask the server what it is, and return it with what the bridge executes; raises InfrastructureError."""
        answer = await self._ask_server(deadline_s)
        try:
            served = read_identity(answer["identity"])
            process = answer["process"]
            name = f"{process['nonce']}/{process['pid']}"
        except (KeyError, TypeError) as error:
            raise _service_fault(Kind.PROTOCOL, f"{self.url} does not identify itself: {error!r}") from None
        if served.gym != "openenv":
            raise _service_fault(Kind.PROTOCOL, f"{self.url} is a {served.gym} server; name an OpenEnv one")
        differing = [
            *(
                field
                for field in ("upstream", "upstream_digest")
                if getattr(served, field) != getattr(self.identity, field)
            ),
            *(file for file, digest in self.identity.sources.items() if served.sources.get(file, digest) != digest),
        ]
        if differing:
            detail = f"bridge and server differ in {', '.join(differing)}; start both from one version"
            raise _service_fault(Kind.IDENTITY_CHANGED, detail)
        return {"identity": served.to_json(), "process": name, "bridge_sources": self.identity.sources}

    async def _ask_server(self, deadline_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(deadline_s), httpx.AsyncClient(trust_env=False, timeout=deadline_s) as client:
                answer = await client.post(f"{self.url}/bridge/identity", headers={SECRET_HEADER: self.secret}, json={})
        except (TimeoutError, httpx.TimeoutException):
            raise _service_fault(Kind.TIMEOUT, f"{self.url} did not answer within {deadline_s:g} s") from None
        except httpx.HTTPError as error:
            raise _service_fault(Kind.UNREACHABLE, f"{self.url} cannot be reached ({error})") from None
        try:
            fields = answer.json()
        except ValueError:
            fields = None
        if answer.status_code != httpx.codes.OK or not isinstance(fields, dict):
            detail = f"{self.url} is no OpenEnv server of this product, or its bridge secret is another one"
            raise _service_fault(Kind.PROTOCOL, detail)
        return fields


class Connection(asyncio.Protocol):
    """One connection of the trainer: at most one rollout, one request at a time.

    A protocol and no stream, so that the trainer's end is seen while a request is being carried out.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._received = Unpacker()
        self._greeted = False
        self._work: asyncio.Task[None] | None = None
        self._client: StrictClient | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a hello."""
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_DEADLINE_S, self._end, "no hello came")

    def data_received(self, data: bytes) -> None:
        """Take one request; anything else than one whole request at a time ends the connection."""
        try:
            message = self._received.feed(data)
        except FrameError as error:
            self._end(str(error))
            return
        if message is None:
            return
        if self._work is not None:
            self._end("a request came before the last one was answered")
        elif not self._greeted:
            self._greet(message)
        else:
            self._work = asyncio.get_running_loop().create_task(self._answer(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is being carried out and free the session."""
        self._deadline.cancel()
        if self._work is not None:
            self._work.cancel()
        if self._client is not None:
            self._client.abort()

    def _end(self, reason: str) -> None:
        print(f"connection ended: {reason}", file=sys.stderr, flush=True)
        self._transport.close()

    def _greet(self, hello: Mapping[str, Any]) -> None:
        self._deadline.cancel()
        offered = hello.get("secret")
        if hello.get("protocol") != PROTOCOL:
            refusal = f"this bridge speaks {PROTOCOL}, not {hello.get('protocol')}"
        elif not isinstance(offered, str) or not secrets.compare_digest(offered.encode(), self._bridge.secret.encode()):
            refusal = "wrong bridge secret"
        else:
            self._greeted = True
            self._transport.write(pack({**self._bridge.hello(), "nonce": hello.get("nonce")}))
            return
        self._transport.write(pack(_as_fields(_service_fault(Kind.PROTOCOL, refusal))))
        self._end(refusal)

    async def _answer(self, message: Mapping[str, Any]) -> None:
        try:
            answer = {"fields": await self._carry_out(message.get("operation"), message)}
        except InfrastructureError as fault:
            answer = _as_fields(fault)
        except (KeyError, TypeError, ValueError) as error:
            answer = _as_fields(_service_fault(Kind.PROTOCOL, f"not a request of this protocol: {error!r}"))
        except Exception as error:
            # Nothing of ours: the trainer must not wait for an answer that never comes.
            self._end(repr(error))
            return
        # Before the answer, which the next request may follow at once.
        self._work = None
        self._transport.write(pack({"id": message.get("id"), **answer}))

    async def _carry_out(self, operation: Any, message: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "identity":
            return await self._bridge.server_identity(message["deadline_s"])
        if operation == "open":
            return await self._open(message)
        if operation == "close":
            await self._farewell()
            return {}
        if self._client is None:
            raise _service_fault(Kind.PROTOCOL, "no session is open on this connection")
        if operation == "call":
            step = {name: message[name] for name in ("tool", "arguments", "call_id")}
            observation = (await self._client.step(step)).observation
            return {"text": observation["text"], "is_error": observation["is_error"]}
        if operation == "verify":
            ending = {"secret": self._bridge.secret, "answer": message["answer"], "truncated": message["truncated"]}
            result = await self._client.step({"verification": ending, "call_id": "verify"})
            verdict = result.observation["verdict"]
            # The verdict in full and what upstream's own fields say must be one thing.
            if verdict is None or (verdict.get("reward"), verdict.get("done")) != (result.reward, result.done):
                raise _service_fault(Kind.PROTOCOL, "reward or done of the step are not those of its verdict")
            return verdict
        raise _service_fault(Kind.PROTOCOL, f"no operation {operation!r}")

    async def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._client is not None:
            raise _service_fault(Kind.PROTOCOL, "this connection has its session")
        self._client = StrictClient(self._bridge.url, message["deadline_s"])
        begun = await self._client.reset(
            episode_id=message["session_id"], task_id=message["task_id"], identity=message["identity"]
        )
        return {"served_by": begun.observation["served_by"]}

    async def _farewell(self) -> None:
        """Close the session as upstream asks for, or drop it when that takes too long."""
        if self._client is not None:
            with suppress(InfrastructureError, TimeoutError):
                await asyncio.wait_for(self._client.close(), FAREWELL_S)
            self._client.abort()


def _as_fields(fault: InfrastructureError) -> dict[str, Any]:
    return {"fault": {"kind": fault.kind, "scope": fault.scope, "detail": fault.detail}}


def _service_fault(kind: Kind, detail: str) -> InfrastructureError:
    return InfrastructureError(kind, Scope.SERVICE, detail)


def main(arguments: list[str] | None = None) -> None:
    """Run the bridge until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m gymqual.gyms.openenv.bridge")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--url", required=True)
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        bridge = Bridge(options.url)
        freeze_start()
        runner.run(bridge.serve(options.port))


if __name__ == "__main__":
    loaded.record(Path(__file__))
    main()
