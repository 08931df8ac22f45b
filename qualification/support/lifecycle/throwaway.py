"""The tests of a throw-away project; a copy of this file is run by a pytest that will be ended."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import Server
from gymqual.harness.records.files import write_atomically
from gymqual.qualification.support.lifecycle.tiny import ask, start_tiny

WAIT_S = 240
"""Longer than any ending takes to come, and bounded."""

# As in a terminal: a job in the background inherits that these are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def fork_child() -> int:
    """Fork a child that keeps every open descriptor, the reaper's pipe included, and outlives this test."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


@pytest.fixture(params=["polite", "deaf"])
def server(gymqual_run: Run, request: pytest.FixtureRequest) -> Server:
    """A server that is nobody's to stop, told of in ``started.json``."""
    started = start_tiny(gymqual_run.owner, gymqual_run.folder / gymqual_run.mine("servers"), request.param)
    daemon = ask(started)["daemon"]
    told = {
        "nonce": gymqual_run.owner.nonce,
        "tester": os.getpid(),
        "pids": [started.pid, daemon["pid"]],
        "ports": [started.port, daemon["port"]],
        "spared": fork_child() if "forks" in request.node.name else 0,
    }
    write_atomically(Path(__file__).with_name("started.json"), json.dumps(told).encode())
    return started


def test_passes(server: Server) -> None:
    """End normally and leave the server to the run."""


def test_fails(server: Server) -> None:
    """Fail."""
    pytest.fail("as it must")


def test_stops_its_server(server: Server) -> None:
    """Stop the server, as a careful fixture does."""
    server.stop(grace_s=0.5)


def test_waits(server: Server) -> None:
    """Wait to be ended."""
    for _ in range(WAIT_S * 10):
        time.sleep(0.1)


def test_forks(server: Server) -> None:
    """Wait to be ended while a forked child lives, as a data loader's worker does."""
    test_waits(server)
