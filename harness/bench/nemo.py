"""How fast the NeMo server and client are, against upstream's trivial server and a bare HTTP loop."""

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import Any

import httpx

from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.nemo import rows
from gymqual.gyms.nemo.client import NemoGym
from gymqual.harness.bench.measured import (
    CALLS_PER_BLOCK,
    CALLS_PER_SESSION,
    SESSIONS,
    WARM_UP_SESSIONS,
    growth_figures,
    owned,
)
from gymqual.harness.process.server import Server
from gymqual.harness.records.figures import ROUNDS, Figure, Say, paired_figure
from gymqual.harness.stacks.environments import find_stack
from gymqual.harness.stacks.services import GymService, start_nemo, start_trivial_nemo
from gymqual.harness.stacks.staging import stage

CONCURRENT = 256
TASK = "v1/dev/0/0"


def bench_nemo(say: Say) -> list[Figure]:
    """Measure the NeMo server against upstream's trivial one; raises HarnessError."""
    stack = find_stack("nemo")
    with owned() as (folder, owner):
        subject = stage(folder / "subject")
        say("starting the German server and upstream's trivial one")
        served = start_nemo(stack, subject, owner, folder / "german")
        start_cpu_s = served.server.cpu_s()
        trivial = start_trivial_nemo(stack, subject, owner, folder / "trivial")
        figures = [Figure("start to healthy", start_cpu_s, 3.0, "CPU-s")]
        # On the fresh server: later blocks would have grown it already.
        say(f"{SESSIONS} sessions one after another, after {WARM_UP_SESSIONS} of warm-up")
        figures += growth_figures(served.server, lambda count: _episodes(served, count))
        for name, calls in (("native", _native_block), ("bridge", _bridge_block)):
            say(f"{ROUNDS} interleaved pairs of {CALLS_PER_BLOCK} tool calls, {name} route")
            figures.append(
                paired_figure(
                    f"server CPU per call over upstream, {name}",
                    lambda calls=calls: calls(served),
                    lambda: _trivial_block(trivial),
                    1.15,
                )
            )
        say(f"{ROUNDS} interleaved pairs of {CALLS_PER_SESSION} calls, client and bare HTTP loop")
        figures.append(_client_wall(served))
        say(f"{CONCURRENT} sessions at once")
        figures.append(Figure(f"errors with {CONCURRENT} concurrent sessions", _concurrent_errors(served), 0, "errors"))
        return figures


def _client(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=30.0)


def _cpu_per_call(server: Server, posts: Iterable[tuple[httpx.Client, str, dict[str, Any], dict[str, str]]]) -> float:
    """Return the server's CPU seconds per post; the posts themselves are prepared before."""
    prepared = list(posts)
    before = server.cpu_s()
    for client, path, body, headers in prepared:
        client.post(path, json=body, headers=headers).raise_for_status()
    return (server.cpu_s() - before) / len(prepared)


def _trivial_block(server: Server) -> float:
    with _client(server) as client:
        client.post("/seed_session", json={}).raise_for_status()
        body = {"expression": "12*8-3"}
        return _cpu_per_call(server, [(client, "/echo", body, {})] * CALLS_PER_BLOCK)


def _native_block(served: GymService) -> float:
    with _client(served.server) as client:
        posts, seeds = [], []
        for _ in range(CALLS_PER_BLOCK // CALLS_PER_SESSION):
            seeds.append(rows.typed_seed(TASK, served.identity.core, secrets.token_hex(16)))
            answer = client.post("/seed_session", json=seeds[-1]).raise_for_status()
            cookie = answer.headers["set-cookie"].partition(";")[0]
            client.cookies.clear()
            posts += [(client, "/calculator", {"expression": "12*8-3"}, {"cookie": cookie})] * CALLS_PER_SESSION
        cpu = _cpu_per_call(served.server, posts)
        for seed in seeds:
            closed = {key: seed[key] for key in ("resources_session_id", "episode_id")}
            client.post("/close_session", json=closed).raise_for_status()
    return cpu


def _bridge_block(served: GymService) -> float:
    with _client(served.server) as client:
        posts = []
        sessions = [_open(client, served) for _ in range(CALLS_PER_BLOCK // CALLS_PER_SESSION)]
        for session in sessions:
            for number in range(CALLS_PER_SESSION):
                call = {"session_id": session, "call_id": str(number), "tool": "calculator"}
                body = {**call, "arguments": '{"expression":"12*8-3"}'}
                posts.append((client, "/bridge/call", body, served.bridge_headers))
        cpu = _cpu_per_call(served.server, posts)
        for session in sessions:
            _post(client, served, "close", session_id=session)
    return cpu


def _client_wall(served: GymService) -> Figure:
    """Measure the client over a bare HTTP loop, in wall time per call."""
    arguments = '{"expression":"12*8-3"}'
    gym = BlockingGym(NemoGym(served.server.url, served.secret, GermanOrders(), blocking=True))
    bare = _client(served.server)

    def through_client() -> float:
        with gym.open(TASK) as session:
            started = time.perf_counter()
            for _ in range(CALLS_PER_SESSION):
                session.call("calculator", arguments)
            return time.perf_counter() - started

    def through_bare_loop() -> float:
        session = _open(bare, served)
        call = {"session_id": session, "tool": "calculator", "arguments": arguments}
        started = time.perf_counter()
        for number in range(CALLS_PER_SESSION):
            _post(bare, served, "call", call_id=str(number), **call)
        seconds = time.perf_counter() - started
        _post(bare, served, "close", session_id=session)
        return seconds

    with gym, bare:
        # Wall time is noisier than CPU time, and a block is short: more of them.
        name = "client wall per call over a bare HTTP loop"
        return paired_figure(name, through_client, through_bare_loop, 1.3, rounds=5 * ROUNDS)


def _post(client: httpx.Client, served: GymService, route: str, **body: Any) -> Any:
    return client.post(f"/bridge/{route}", json=body, headers=served.bridge_headers).raise_for_status().json()


def _open(client: httpx.Client, served: GymService) -> str:
    session = secrets.token_hex(16)
    _post(client, served, "open", session_id=session, task_id=TASK, identity=served.identity.digest)
    return session


def _episodes(served: GymService, count: int) -> None:
    script = GermanOrders().scripts(TASK)["oracle"]
    with _client(served.server) as client:
        for _ in range(count):
            session = _open(client, served)
            for number, call in enumerate(script.calls):
                body = {"call_id": str(number), "tool": call.tool, "arguments": call.arguments}
                _post(client, served, "call", session_id=session, **body)
            _post(client, served, "verify", session_id=session, answer=script.answer)
            _post(client, served, "close", session_id=session)


def _concurrent_errors(served: GymService) -> int:
    script = GermanOrders().scripts(TASK)["oracle"]

    async def episode(client: httpx.AsyncClient) -> float:
        session = secrets.token_hex(16)

        async def post(route: str, **body: Any) -> Any:
            answer = await client.post(
                f"/bridge/{route}", json={"session_id": session, **body}, headers=served.bridge_headers
            )
            return answer.raise_for_status().json()

        await post("open", task_id=TASK, identity=served.identity.digest)
        await everyone_open.wait()
        for number, call in enumerate(script.calls):
            await post("call", call_id=str(number), tool=call.tool, arguments=call.arguments)
        verdict = await post("verify", answer=script.answer)
        await post("close")
        return verdict["reward"]

    async def all_at_once() -> list[float | BaseException]:
        limits = httpx.Limits(max_connections=CONCURRENT, max_keepalive_connections=CONCURRENT)
        async with httpx.AsyncClient(
            base_url=served.server.url, trust_env=False, timeout=60.0, limits=limits
        ) as client:
            return await asyncio.gather(*(episode(client) for _ in range(CONCURRENT)), return_exceptions=True)

    everyone_open = asyncio.Barrier(CONCURRENT)
    return sum(1 for reward in asyncio.run(all_at_once()) if reward != 1.0)
