"""How many episodes a second the gyms carry through our clients, against upstream's trivial servers.

An episode is what a rollout makes of a gym: open, the oracle's tool calls, verify, close. Upstream's is as many
requests of its trivial server, by its own client in a process of its own stack.
"""

import asyncio
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gymqual.gyms.base import InfrastructureError, Script
from gymqual.gyms.client import ClientGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.nemo.client import NemoGym
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.harness.bench import load
from gymqual.harness.bench.measured import owned
from gymqual.harness.bench.openenv import client_process
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import Server
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.figures import Figure, Say, interleaved
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.harness.report.throughput_result import MEASURES, RESULT, Level, Throughput, figures
from gymqual.harness.stacks.environments import Stack, find_stack
from gymqual.harness.stacks.services import start_bridge, start_echo, start_nemo, start_openenv, start_trivial_nemo
from gymqual.harness.stacks.staging import Subject, stage

EPISODES = {1: 128, 16: 256, 256: 512}
"""Of a block, by sessions at once: a second or more, since the kernel counts CPU time in ticks of 10 ms."""
ROUNDS = 9
TASKS = 256
"""Different tasks, as in a batch."""
TOOL_CALLS = 2
"""Of an oracle's episode."""

Block = dict[str, float]
"""Seconds by measure."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    play: Callable[[int, int], dict[str, float]]
    """Plays so many sessions at once and episodes; see ``load.play``."""
    services: tuple[Server, ...]

    def block(self, sessions: int, episodes: int) -> Block:
        """Play one block; raises HarnessError if any episode fails."""
        before = self._cpu_s()
        try:
            took = self.play(sessions, episodes)
        except (RuntimeError, InfrastructureError) as error:
            raise HarnessError(f"{self.services[0].name} under {sessions} sessions: {error}") from None
        services = self._cpu_s() - before
        per_episode = {"wall": took["wall_s"], "services": services, "processes": services + took["cpu_s"]}
        return {
            **{measure: seconds / episodes for measure, seconds in per_episode.items()},
            "p50": took["p50_s"],
            "p99": took["p99_s"],
        }

    def _cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self.services)


def bench_throughput(say: Say, out: Path) -> list[Figure]:
    """Measure both gyms and write measurements, table and plot to ``out``; raises HarnessError."""
    # It takes half a second to load, which no other command needs.
    from gymqual.harness.report import pages, throughput_drawing

    busy = os.getloadavg()[0]
    levels, versions = [], {"load generator": f"CPython {platform.python_version()}"}
    for gym, sides in (("nemo", nemo_sides), ("openenv", openenv_sides)):
        stack = find_stack(gym)
        with owned() as (folder, owner):
            say(f"{gym}: starting our services and upstream's")
            with sides(stack, stage(folder / "subject"), owner, folder) as (ours, upstream, version):
                versions[gym] = f"{version} on CPython {stack.version}"
                levels += [_level(say, gym, sessions, ours, upstream) for sessions in EPISODES]
    measured = Throughput(machine=_machine(), load=round(busy, 1), versions=versions, levels=tuple(levels))
    write_atomically(out / RESULT, readable_json(measured.model_dump(mode="json")))
    throughput_drawing.write(measured, out)
    pages.write(out)
    return figures(measured)


def _level(say: Say, gym: str, sessions: int, ours: Side, upstream: Side) -> Level:
    episodes = EPISODES[sessions]
    say(f"{gym}: {ROUNDS} interleaved rounds of {episodes} episodes, {sessions} at once")
    for side in (ours, upstream):
        side.block(sessions, episodes)
    rounds = interleaved(lambda: ours.block(sessions, episodes), lambda: upstream.block(sessions, episodes), ROUNDS)
    return Level(
        gym=gym,
        sessions=sessions,
        episodes=episodes,
        rounds={name: tuple(_of_round(each, name) for each in rounds) for name in MEASURES},
    )


def _of_round(blocks: tuple[Block, Block, Block], measure: str) -> tuple[float, float, float]:
    first, tried, second = (float(f"{block[measure]:.4g}") for block in blocks)
    return first, tried, second


# ---- ours, through the product's own clients ---------------------------------------------------------------


def play_gym(connected: Callable[[], ClientGym], sessions: int, episodes: int) -> dict[str, float]:
    """Play oracle episodes through one client; see ``load.play``."""

    async def block() -> dict[str, float]:
        async with connected() as gym:

            async def episode(number: int, clock: load.Clock) -> None:
                task, script = _scripts()[number % TASKS]
                session = await gym.open(task)
                try:
                    for call in script.calls:
                        await clock.call(session.call(call.tool, call.arguments))
                    verdict = await session.verify(script.answer)
                finally:
                    await session.close()
                if not verdict.strict:
                    raise ValueError(f"the oracle's episode of {task} is {verdict.outcome}")

            return await load.play(sessions, episodes, episode)

    return asyncio.run(block())


@cache
def _scripts() -> list[tuple[str, Script]]:
    orders = GermanOrders()
    tasks = [f"v1/dev/0/{index}" for index in range(TASKS)]
    return [(task, orders.scripts(task)["oracle"]) for task in tasks]


# ---- NeMo -----------------------------------------------------------------------------------------------------


@contextmanager
def nemo_sides(stack: Stack, subject: Subject, owner: Owner, folder: Path) -> Iterator[tuple[Side, Side, str]]:
    """Our server and client, upstream's trivial server and HTTP client, and upstream's version."""
    served = start_nemo(stack, subject, owner, folder / "german")
    trivial = start_trivial_nemo(stack, subject, owner, folder / "trivial")

    def ours(sessions: int, episodes: int) -> dict[str, float]:
        return play_gym(lambda: NemoGym(served.server.url, served.secret, GermanOrders()), sessions, episodes)

    with _upstream(stack, folder / "player", NEMO_PLAYER, trivial) as upstream:
        yield Side(ours, (served.server,)), Side(upstream, (trivial,)), served.identity.upstream


# The fourth request stands for verify, which upstream's server pays with a check of the whole trajectory.
NEMO_PLAYER = """
import asyncio, json, secrets, sys
from load import play
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, request, set_global_aiohttp_client

url, calls = sys.argv[1], int(sys.argv[2])
echo = {"expression": "12*8-3"}

async def post(route, body, cookies):
    response = await request("POST", url + route, json=body, cookies=cookies)
    response.raise_for_status()
    await response.json()
    return response.cookies

async def episode(number, clock):
    name = {"rollout_id": secrets.token_hex(16), "attempt": 0}
    cookies = await post("/seed_session", {"seed": number}, {})
    for _ in range(calls):
        await clock.call(post("/echo", echo, cookies))
    await post("/echo", echo, cookies)
    await post("/close_session", {"resources_session_id": name["rollout_id"], "episode_id": name}, cookies)

async def main():
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    for line in sys.stdin:
        try:
            answer = await play(*json.loads(line), episode)
        except RuntimeError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)

asyncio.run(main())
"""


# ---- OpenEnv --------------------------------------------------------------------------------------------------


@contextmanager
def openenv_sides(stack: Stack, subject: Subject, owner: Owner, folder: Path) -> Iterator[tuple[Side, Side, str]]:
    """Our server, bridge and client, upstream's echo environment and SDK client, and upstream's version."""
    served = start_openenv(stack, subject, owner, folder / "german")
    bridge = start_bridge(stack, subject, owner, folder / "bridge", url=served.server.url, secret=served.secret)
    echo = start_echo(stack, owner, folder / "echo", sessions=max(EPISODES))

    def ours(sessions: int, episodes: int) -> dict[str, float]:
        return play_gym(lambda: OpenEnvGym(bridge.port, served.secret, GermanOrders()), sessions, episodes)

    with _upstream(stack, folder / "player", OPENENV_PLAYER, echo) as upstream:
        yield Side(ours, (served.server, bridge)), Side(upstream, (echo,)), served.identity.upstream


OPENENV_PLAYER = """
import asyncio, json, sys
from load import play
from openenv.core.generic_client import GenericEnvClient

url, calls = sys.argv[1], int(sys.argv[2])
step = {"message": "12*8-3"}

async def episode(number, clock):
    async with GenericEnvClient(base_url=url) as client:
        await client.reset()
        for _ in range(calls):
            await clock.call(client.step(step))
        await client.step(step)

for line in sys.stdin:
    try:
        answer = asyncio.run(play(*json.loads(line), episode))
    except RuntimeError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""


@contextmanager
def _upstream(
    stack: Stack, folder: Path, player: str, server: Server
) -> Iterator[Callable[[int, int], dict[str, float]]]:
    """Start upstream's own client in its own stack, and return what lets it play; see ``load.play``."""
    folder.mkdir()
    shutil.copy(load.__file__, folder)

    with client_process(stack, folder, player, server.url, str(TOOL_CALLS)) as ask:

        def play(sessions: int, episodes: int) -> dict[str, float]:
            answer = json.loads(ask(json.dumps([sessions, episodes])))
            if isinstance(answer, str):
                raise RuntimeError(answer)
            return answer

        yield play


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores"
