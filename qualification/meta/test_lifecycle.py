"""Nothing of ours survives the end of pytest, however it ends, and no server is taken for another.

The servers here daemonise a grandchild and can be deaf to SIGTERM; the pytest that starts them is a real one.
"""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import psutil
import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process import reaper
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import LOOPBACK, Server, free_ports
from gymqual.harness.records.errors import ServerFailed
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.lifecycle.project import PytestRun, Started, throw_away_project
from gymqual.qualification.support.lifecycle.tiny import ask, start_tiny

pytestmark = pytest.mark.self_test

NEMO_ENTRY = "resources_servers/german_orders/app.py"


@dataclass(frozen=True)
class Ending:
    """One way in which a pytest ends."""

    test: str
    """The test of the throw-away project that runs, and its server's behaviour."""
    exit_code: int
    end: Callable[[PytestRun, Started], None] = lambda running, started: None
    options: tuple[str, ...] = ()


def timeout_by(method: str) -> tuple[str, ...]:
    """Options that end a test after a second, its set-up not counted."""
    return ("--timeout", "1", "--timeout-method", method, "-o", "timeout_func_only=true")


def interrupt_without_reaper(running: PytestRun) -> None:
    """Kill the reaper, then end pytest as Ctrl-C does."""
    running.child_of(reaper.__file__).kill()
    running.send(signal.SIGINT)


ENDINGS = {
    "normal end": Ending("test_passes[polite]", 0),
    "normal end, deaf server stopped before": Ending("test_stops_its_server[deaf]", 0),
    "failing test": Ending("test_fails[polite]", 1),
    "Ctrl-C": Ending("test_waits[polite]", 2, lambda running, _: running.send_to_group(signal.SIGINT)),
    "closed terminal": Ending("test_waits[deaf]", -1, lambda running, _: running.send_to_group(signal.SIGHUP)),
    "SIGTERM": Ending("test_waits[deaf]", 2, lambda running, _: running.send(signal.SIGTERM)),
    "SIGKILL": Ending("test_waits[polite]", -9, lambda running, _: running.send(signal.SIGKILL)),
    "time-out by signal": Ending("test_waits[polite]", 1, options=timeout_by("signal")),
    "time-out by thread": Ending("test_waits[deaf]", 1, options=timeout_by("thread")),
    "SIGKILL while a forked child lives": Ending(
        "test_forks[polite]", -9, lambda running, _: running.send(signal.SIGKILL)
    ),
    "Ctrl-C without its reaper": Ending("test_waits[deaf]", 2, lambda running, _: interrupt_without_reaper(running)),
    "SIGKILL of a parallel worker": Ending(
        "test_waits[polite]", 1, lambda _, started: psutil.Process(started.tester).kill(), ("-n", "2")
    ),
    "SIGKILL of the controller": Ending(
        "test_waits[deaf]", -9, lambda running, _: running.send(signal.SIGKILL), ("-n", "2")
    ),
}


class Stranger(ThreadingTCPServer):
    """A server of somebody else that would be glad to pass for ours, and keeps every byte it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Eavesdrop)
        self.received: list[bytes] = []
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Eavesdrop(BaseRequestHandler):
    server: Stranger  # type: ignore[assignment]

    def handle(self) -> None:
        """Keep what was sent, which is nothing where only a connection was made, and answer as ours would."""
        self.server.received.append(self.request.recv(65536))
        body = json.dumps({"nonce": "0" * 32, "pid": 1, "daemon": {}}).encode()
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A server of somebody else."""
    with Stranger() as stranger:
        yield stranger
        stranger.shutdown()


@pytest.fixture
def owner() -> Iterator[Owner]:
    """An owner of its own, so that no other server of this pytest counts."""
    owner = Owner()
    yield owner
    owner.close()


@pytest.fixture
def other_owner() -> Iterator[Owner]:
    """The owner of another run."""
    owner = Owner()
    yield owner
    owner.close()


def alive(owner: Owner) -> list[str]:
    """Return what is alive of an owner's processes."""
    return [str(process) for process in reaper.marked(reaper.RUN_VARIABLE, owner.nonce)]


def first_taken(port: int) -> list[int]:
    """Return five candidates, of which the first is taken."""
    return [port, *islice(free_ports(), 4)]


# --- However pytest ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_survives_pytest(name: str, tmp_path: Path) -> None:
    """Once pytest has ended, no process of its run MUST be alive and no port of it open, daemons included."""
    ending = ENDINGS[name]
    with throw_away_project(tmp_path, ending.test, *ending.options) as running:
        started = running.tiny()
        ending.end(running, started)
        seen = (running.exit_code(), running.left_behind())
    assert seen == (ending.exit_code, {}), explain(
        subject=f"exit code of a pytest ended by {name}, and what is left of {started}",
        expected=(ending.exit_code, {}),
        got=seen,
        cause="the reaper was not started, did not see its owner end, or looks for children only",
    )


def test_without_a_reaper_survivors_are_seen(tmp_path: Path) -> None:
    """Without a reaper a killed pytest MUST be seen to leave server, daemon and ports, or no check here counts."""
    without = ("-p", "gymqual.qualification.support.lifecycle.without_reaper")
    with throw_away_project(tmp_path, "test_waits[polite]", *without) as running:
        started = running.tiny()
        running.send(signal.SIGKILL)
        running.exit_code()
        left = running.left_behind(limit_s=2)
    assert left.keys() == started.names, explain(
        subject="what a killed pytest without a reaper left",
        expected=started.names,
        got=left,
        cause="the search for survivors is blind, or something else than the reaper ends servers",
    )


@pytest.mark.gym("nemo")
def test_no_nemo_server_survives_a_killed_pytest(run: Run, tmp_path: Path) -> None:
    """Once pytest is killed, the real NeMo server it started MUST end and close its port."""
    run.stack("nemo")
    checks = ("--reports", str(tmp_path), "qualification/nemo/test_service.py", "-k", "interleaved")
    with PytestRun(ROOT, tmp_path / "output.txt", *checks) as running:
        started = running.child(NEMO_ENTRY)
        running.send(signal.SIGKILL)
        seen = (running.exit_code(), running.left_behind())
    assert seen == (-signal.SIGKILL, {}), explain(
        subject=f"exit code of a killed pytest, and what is left of {started}",
        expected=(-signal.SIGKILL, {}),
        got=seen,
        cause="the server replaces its environment, so that the reaper does not know it",
    )


# --- Whom we talk to -------------------------------------------------------------------------------


def test_a_stranger_on_the_port_is_never_talked_to(stranger: Stranger, owner: Owner, tmp_path: Path) -> None:
    """A port that a stranger holds MUST be given up for the next one without a byte sent to the stranger."""
    candidates = first_taken(stranger.server_address[1])
    server = start_tiny(owner, tmp_path, ports=candidates)
    seen = (server.port, stranger.received, len(alive(owner)))
    assert seen == (candidates[1], [], 2), explain(
        subject="port used, bytes sent to the stranger, processes of ours (server and daemon)",
        expected=(candidates[1], [], 2),
        got=seen,
        cause="readiness was asked of the port instead of our process, or a failed try was not cleaned up",
    )


def test_a_stale_server_is_never_talked_to(owner: Owner, other_owner: Owner, tmp_path: Path) -> None:
    """A port that the same server of another run holds MUST be given up without a request, and MUST stay up."""
    stale = start_tiny(other_owner, tmp_path / "stale")
    connections = ask(stale)["connections_before"] + 1
    candidates = first_taken(stale.port)
    server = start_tiny(owner, tmp_path / "fresh", ports=candidates)
    seen = (server.port, ask(stale)["connections_before"] - connections, len(alive(owner)))
    assert seen == (candidates[1], 0, 2), explain(
        subject="port used, connections made to the stale server, processes of ours (server and daemon)",
        expected=(candidates[1], 0, 2),
        got=seen,
        cause="readiness was asked of the port instead of our process, or a failed try was not cleaned up",
    )


# --- Servers that fail, are paused, are stopped ----------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        pytest.param("ill", "ended with 1 before it was ready; the order book is missing", id="exits at once"),
        pytest.param("mute", "did not listen on port {0}; mute, about to start", id="never listens"),
        pytest.param("liar", "{0}; names itself; liar, about to start", id="answers with another nonce"),
    ],
)
def test_a_server_that_never_gets_ready_says_why(behaviour: str, told: str, owner: Owner, tmp_path: Path) -> None:
    """A failed start MUST name what was tried and what the server said, and MUST leave nothing alive."""
    ports = list(islice(free_ports(), 5))
    with pytest.raises(ServerFailed) as failed:
        start_tiny(owner, tmp_path, behaviour, ports=ports, limit_s=4 if behaviour == "mute" else 60)
    unsaid = [part for part in told.format(*ports).split("; ") if part not in str(failed.value)]
    assert (unsaid, alive(owner)) == ([], []), explain(
        subject=f"what the error does not say, and what is alive after it: {failed.value}",
        expected=([], []),
        got=(unsaid, alive(owner)),
        cause="the log is not quoted, or a server that is not ready is forgotten instead of stopped",
    )


@pytest.mark.parametrize(
    ("behaviour", "grace_s", "signal_number"),
    # A polite one that ends by SIGKILL was never woken; it gets long enough for a busy machine.
    [("polite", 20, signal.SIGTERM), ("deaf", 0.5, signal.SIGKILL)],
)
def test_a_paused_server_can_be_stopped(
    behaviour: str, grace_s: float, signal_number: int, owner: Owner, tmp_path: Path
) -> None:
    """A paused server MUST end by SIGTERM, or by SIGKILL where it is deaf, and MUST leave nothing alive."""
    server = start_tiny(owner, tmp_path, behaviour)
    server.pause()
    paused = psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
    server.stop(grace_s)
    seen = (paused, server.exit_code, alive(owner))
    assert seen == (True, -signal_number, []), explain(
        subject="whether paused, exit code after stop, what is alive then",
        expected=(True, -signal_number, []),
        got=seen,
        cause="stop does not continue the server first, or does not insist",
    )


@pytest.mark.parametrize("again", [Server.stop, Server.kill])
def test_stop_is_idempotent(again: Callable[[Server], None], owner: Owner, tmp_path: Path) -> None:
    """Ending a server that has ended MUST do nothing."""
    server = start_tiny(owner, tmp_path)
    server.stop()
    first = server.exit_code
    again(server)
    seen = (first, server.exit_code, server.alive, alive(owner))
    assert seen == (-signal.SIGTERM, -signal.SIGTERM, False, []), explain(
        subject="exit code after the first and the second end, whether alive, what is left",
        expected=(-signal.SIGTERM, -signal.SIGTERM, False, []),
        got=seen,
        cause="a second end signals a process id that is no longer the server's",
    )


def test_children_get_an_allow_listed_environment(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server MUST NOT inherit what is not allowed by name; the PYTHONPATH of its own start is its only one."""
    unwanted = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "HTTP_PROXY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")
    names = (*unwanted, "PYTHONPATH", "A_NAME_THAT_NO_LIST_HOLDS")
    for name in names:
        monkeypatch.setenv(name, "/the/parents/own")
    server = start_tiny(owner, tmp_path, environment={"PYTHONPATH": "/given"})
    environment = psutil.Process(server.pid).environ()
    seen = {name: environment[name] for name in names if name in environment}
    assert seen == {"PYTHONPATH": "/given"}, explain(
        subject="variables of the parent that are in the server's environment",
        expected={"PYTHONPATH": "/given"},
        got=seen,
        cause="the environment is copied from the parent's and then cleaned, name by name",
    )
