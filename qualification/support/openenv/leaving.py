"""How clients leave a server, and whether it frees their slot."""

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gymqual.harness.stacks.services import GymService
from gymqual.qualification.support.openenv.wire import Wire
from gymqual.qualification.support.scenarios import wait_for

TASK = "v1/dev/0/0"

WAITING_CLIENT = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1], proxy=None) as socket:
    socket.send(json.dumps({"type": "reset", "data": {"task_id": sys.argv[2]}}))
    print(len(socket.recv()), flush=True)
    sys.stdin.read()
    socket.recv()
"""


def frees_its_slot(wire: Wire, leave: Callable[[Any], object], begin: Callable[[str], Any]) -> bool:
    """Take one more slot and leave; return whether the slot came back, and had been taken."""
    before = wire.state()["open"]
    session = begin(TASK)
    taken = wire.state()["open"] == before + 1
    leave(session)
    return taken and wait_for(lambda: wire.state()["open"] == before, limit_s=15)


def client_process(service: GymService, task_id: str) -> "subprocess.Popen[bytes]":
    """Start a client that begins an episode and then waits; return it once it has begun."""
    client = subprocess.Popen(
        [sys.executable, "-c", WAITING_CLIENT, f"ws://127.0.0.1:{service.server.port}/ws", task_id],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    client.stdout.readline()
    return client


def kill(client: "subprocess.Popen[bytes]") -> None:
    client.send_signal(signal.SIGKILL)
    client.communicate(timeout=30)
