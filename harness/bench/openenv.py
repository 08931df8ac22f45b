"""How fast the OpenEnv server and bridge are, against upstream's own echo environment and its bare SDK client."""

import json
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path

from websockets.sync.client import ClientConnection, connect

from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.harness.bench.measured import CALLS_PER_SESSION, SESSIONS, WARM_UP_SESSIONS, growth_figures, owned
from gymqual.harness.process.server import Server, child_environment
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.figures import ROUNDS, Figure, Say, paired_figure
from gymqual.harness.stacks.environments import Stack, find_stack
from gymqual.harness.stacks.services import GymService, start_bridge, start_echo, start_openenv
from gymqual.harness.stacks.staging import stage

ANSWER_LIMIT_S = 300.0
"""For a block of episodes, which takes seconds."""
TASK = "v1/dev/0/0"
STEPS_PER_BLOCK = 5000
"""Half a second of CPU time, which the kernel counts in ticks of 10 ms."""
CALCULATION = {"tool": "calculator", "arguments": '{"expression":"12*8-3"}'}


def bench_openenv(say: Say) -> list[Figure]:
    """Measure the OpenEnv server, and the bridge in front of it; raises HarnessError."""
    stack = find_stack("openenv")
    with owned() as (folder, owner):
        subject = stage(folder / "subject")
        say("starting the German server, its bridge, and upstream's echo environment")
        served = start_openenv(stack, subject, owner, folder / "german")
        start_cpu_s = served.server.cpu_s()
        bridge = start_bridge(stack, subject, owner, folder / "bridge", url=served.server.url, secret=served.secret)
        echo = start_echo(stack, owner, folder / "echo")
        figures = [
            Figure("start to healthy, server", start_cpu_s, 3.0, "CPU-s"),
            Figure("start to healthy, bridge", bridge.cpu_s(), 3.0, "CPU-s"),
        ]
        # On the fresh server: later blocks would have grown it already.
        say(f"{SESSIONS} sessions one after another, after {WARM_UP_SESSIONS} of warm-up")
        figures += growth_figures(served.server, lambda count: _episodes(served, count))
        say(f"{ROUNDS} interleaved pairs of {STEPS_PER_BLOCK} steps")
        name = "server CPU per step over upstream's echo"
        step = {**CALCULATION, "call_id": None}
        figures.append(
            paired_figure(name, lambda: _block(served.server, step), lambda: _block(echo, {"message": "12*8-3"}), 1.15)
        )
        say(f"{5 * ROUNDS} interleaved pairs of {CALLS_PER_SESSION} calls, client with bridge and bare SDK clients")
        return figures + _bridge_walls(stack, served, bridge, folder)


def _socket(stack: ExitStack, server: Server) -> ClientConnection:
    opening = connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, compression=None, ping_interval=None)
    return stack.enter_context(opening)


def _ask(socket: ClientConnection, **frame: object) -> dict[str, object]:
    socket.send(json.dumps(frame))
    answer = json.loads(socket.recv(timeout=30))
    if answer["type"] == "error":
        raise HarnessError(f"a benchmarked server refused: {answer['data']}")
    return answer


def _block(server: Server, step: dict[str, object]) -> float:
    """Return a server's CPU seconds per step, in one session."""
    with ExitStack() as stack:
        socket = _socket(stack, server)
        _ask(socket, type="reset", data={})
        before = server.cpu_s()
        for _ in range(STEPS_PER_BLOCK):
            _ask(socket, type="step", data=step)
        return (server.cpu_s() - before) / STEPS_PER_BLOCK


def _episodes(served: GymService, count: int) -> None:
    script = GermanOrders().scripts(TASK)["oracle"]
    ending = {"secret": served.secret, "answer": script.answer}
    for _ in range(count):
        with ExitStack() as stack:
            socket = _socket(stack, served.server)
            _ask(socket, type="reset", data={"task_id": TASK, "episode_id": secrets.token_hex(16)})
            for call in script.calls:
                _ask(socket, type="step", data={"tool": call.tool, "arguments": call.arguments})
            _ask(socket, type="step", data={"verification": ending})


def _bridge_walls(stack: Stack, served: GymService, bridge: Server, folder: Path) -> list[Figure]:
    """Measure a trainer's call through client and bridge, in wall time, over a step of upstream's bare SDK client.

    A trainer calls tools synchronously, and so does ``gym``; upstream's client does with ``.sync()``, and that is
    what the goal is held to. Its asynchronous client, which no trainer can call as it stands, is measured as well.
    """
    gym = BlockingGym(OpenEnvGym(bridge.port, served.secret, GermanOrders(), blocking=True))

    def through_bridge() -> float:
        with gym.open(TASK) as session:
            started = time.perf_counter()
            for _ in range(CALLS_PER_SESSION):
                session.call(str(CALCULATION["tool"]), str(CALCULATION["arguments"]))
            return time.perf_counter() - started

    name = "bridge round trip over a bare SDK client"
    # Wall time is noisier than CPU time, and a block is short: more of them.
    rounds = 5 * ROUNDS
    with gym, _sdk(stack, served, folder, SDK_SYNC_LOOP) as synchronous, _sdk(stack, served, folder, SDK_LOOP) as bare:
        return [
            paired_figure(f"{name}, synchronous", through_bridge, synchronous, 1.5, rounds=rounds),
            paired_figure(f"{name}, asynchronous", through_bridge, bare, inf, rounds=rounds),
        ]


@contextmanager
def _sdk(stack: Stack, served: GymService, folder: Path, loop: str) -> Iterator[Callable[[], float]]:
    """A process of upstream's client, and a function that lets it play a session and returns its wall seconds."""
    arguments = (served.server.url, json.dumps(CALCULATION), str(CALLS_PER_SESSION))
    with client_process(stack, folder, loop, *arguments) as ask:
        yield lambda: float(ask(""))


@contextmanager
def client_process(stack: Stack, folder: Path, script: str, *arguments: str) -> Iterator[Callable[[str], str]]:
    """A process of upstream's client, which may import from ``folder``, and a function that sends it a line.

    The function returns the line that is answered, and raises HarnessError if the process has ended, or does not answer
    within ``ANSWER_LIMIT_S``.
    """
    environment = child_environment({"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}, folder)
    process = subprocess.Popen(
        [stack.python, "-P", "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def ask(line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        # Of a process that has ended, what is missing is its answer.
        with suppress(BrokenPipeError):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        ending = threading.Timer(ANSWER_LIMIT_S, process.kill)
        ending.start()
        answer = process.stdout.readline()
        late = not ending.is_alive()
        ending.cancel()
        if not answer:
            why = f"did not answer within {ANSWER_LIMIT_S:.0f} s" if late else "ended"
            raise HarnessError(f"upstream's client {why}; see what it said above")
        return answer

    try:
        yield ask
    finally:
        process.kill()
        process.communicate()


SDK_SYNC_LOOP = """
import json, sys, time
from openenv.core.generic_client import GenericEnvClient

url, step, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
while sys.stdin.readline():
    with GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        started = time.perf_counter()
        for _ in range(count):
            client.step(step)
        print(time.perf_counter() - started, flush=True)
"""
SDK_LOOP = """
import asyncio, json, sys, time
from openenv.core.generic_client import GenericEnvClient

async def block(url, step, count):
    async with GenericEnvClient(base_url=url) as client:
        await client.reset()
        started = time.perf_counter()
        for _ in range(count):
            await client.step(step)
        return time.perf_counter() - started

async def main():
    url, step, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    while sys.stdin.readline():
        print(await block(url, step, count), flush=True)

asyncio.run(main())
"""
