"""Server processes: started in a session of their own, identified before they are trusted, never left behind.

A server is trusted only after the process that *we* started is seen to listen on the port, and after it has
answered with our nonce and its own pid: a port number alone says nothing.
"""

import errno
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from gymqual.harness.process import reaper
from gymqual.harness.process.owner import Owner
from gymqual.harness.records.errors import HarnessError, ServerFailed

LOOPBACK = "127.0.0.1"
PORT_ATTEMPTS = 5
READY_LIMIT_S = 180.0
"""Start-up may compete with another job for two cores; a healthy server needs a few seconds."""

_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def child_environment(extra: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return a server's whole environment: an allow-list, so that no secret, proxy or CUDA variable gets in.

    ``home`` keeps what upstream packages write to a home folder inside the run.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    fixed = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**inherited, **fixed, **extra}


@dataclass(frozen=True)
class Launch:
    """One command to start: what differs from port to port is already filled in."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables beside those of ``child_environment``."""


class Server:
    """One running server process on loopback."""

    def __init__(self, name: str, port: int, process: "subprocess.Popen[bytes]", log: Path, mark: str) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._process = process
        self._mark = mark

    def __repr__(self) -> str:
        return f"<{self.name} at {LOOPBACK}:{self.port}, pid {self.pid}>"

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs (paused counts)."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while alive."""
        return self._process.poll()

    def wait(self, limit_s: float) -> int:
        """Wait for the process to end and return its exit code; raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout=limit_s)

    def cpu_s(self) -> float:
        """CPU seconds used so far, user plus system."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def rss_bytes(self) -> int:
        """Resident memory in bytes."""
        return psutil.Process(self.pid).memory_info().rss

    def descriptors(self) -> int:
        """Open file descriptors."""
        return psutil.Process(self.pid).num_fds()

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of the server's log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): it hangs without dying. Returns once it is frozen."""
        os.killpg(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        # The signal is delivered when the server is scheduled next; until then it may still answer.
        while psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} (pid {self.pid}) did not stop within 10 s of SIGSTOP")
            time.sleep(0.01)

    def resume(self) -> None:
        """Undo ``pause``."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL), descendants included."""
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=10)
        reaper.kill_marked(reaper.SERVER_VARIABLE, self._mark)

    def stop(self, grace_s: float = 5.0) -> None:
        """End the server politely, then by force, descendants included. Idempotent."""
        # A paused process does not see SIGTERM.
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(timeout=10)
        reaper.kill_marked(reaper.SERVER_VARIABLE, self._mark)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            os.killpg(self.pid, number)


def start_server(
    name: str,
    launch: Callable[[int], Launch],
    identify: Callable[[Server], tuple[str, int]],
    *,
    owner: Owner,
    folder: Path,
    ports: Iterable[int] | None = None,
    limit_s: float = READY_LIMIT_S,
) -> Server:
    """Start a server and return it once it is proven to be ours and ready.

    ``launch`` builds the command for a port, ``identify`` asks the server for its (nonce, pid). ``folder`` is
    its working directory and takes its log. A port that turns out to be taken is replaced by the next
    of ``ports`` (free ones by default), five at most. Raises ServerFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    candidates = list(islice(ports if ports is not None else free_ports(), PORT_ATTEMPTS))
    for port in candidates:
        server = _spawn(name, port, launch(port), owner, folder)
        try:
            if _wait_until_ours(server, identify, owner.nonce, limit_s):
                return server
        except BaseException:
            server.stop(grace_s=0.5)
            raise
        server.stop()
    raise ServerFailed(f"{name}: every port tried is taken ({', '.join(map(str, candidates))}); name another one")


@dataclass(frozen=True)
class Finished:
    """One command that ran to its end."""

    name: str
    exit_code: int
    """Negative for a signal."""
    log: Path
    """What it printed, errors included."""

    @property
    def output(self) -> str:
        """What it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def run_command(name: str, launch: Launch, *, owner: Owner, folder: Path, limit_s: float) -> Finished:
    """Run a command in ``folder`` and end whatever it leaves behind. Raises ServerFailed after ``limit_s`` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    command = _spawn(name, 0, launch, owner, folder)
    try:
        return Finished(name, command.wait(limit_s), command.log)
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"{name} did not end within {limit_s:.0f} s; its log ends:\n{command.log_tail()}") from None
    finally:
        command.stop(grace_s=2.0)


def free_ports() -> Iterator[int]:
    """Yield loopback ports that were free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        # Outside of the block, or the port would stay bound until the next one is asked for.
        yield port


def require_free(port: int) -> None:
    """Raise HarnessError, naming the holder where it can be seen, if ``port`` is taken or not a port."""
    if not 1 <= port <= 65535:
        raise HarnessError(f"port {port} does not exist; name one from 1024 to 65535")
    try:
        with socket.socket() as probe:
            # As servers do, so that connections of the last one in TIME_WAIT are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HarnessError(f"port {port} is taken{_holder(port)}; stop it or name another port") from None
        raise HarnessError(f"port {port} cannot be used ({error.strerror}); name another port") from None


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})" if connection.pid else ""
    except psutil.Error:
        pass
    return ""


def _spawn(name: str, port: int, launch: Launch, owner: Owner, folder: Path) -> Server:
    mark = secrets.token_hex(8)
    marks = {reaper.RUN_VARIABLE: owner.nonce, reaper.SERVER_VARIABLE: mark}
    # A log of its own for every start: an old one must not explain a new failure.
    log = folder / f"{name}-{port}-{mark[:6]}.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                launch.argv,
                cwd=folder,
                env=child_environment({**launch.environment, **marks}, home=folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerFailed(f"{name}: cannot run {launch.argv[0]} ({error.strerror})") from None
    return Server(name, port, process, log, mark)


def _wait_until_ours(server: Server, identify: Callable[[Server], tuple[str, int]], nonce: str, limit_s: float) -> bool:
    """Wait until the server is ready and ours. False: somebody else holds the port. Raises ServerFailed."""
    deadline = time.monotonic() + limit_s
    while not _listens(server):
        if not server.alive:
            if "address already in use" in server.log_tail().lower():
                return False
            raise ServerFailed(
                f"{server.name} ended with {server.exit_code} before it was ready; its log ends:\n{server.log_tail()}"
            )
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{server.name} did not listen on port {server.port} within {limit_s:.0f} s; "
                f"its log ends:\n{server.log_tail()}"
            )
        time.sleep(0.05)
    # Only now is a byte sent: before, the port could have been a stranger's.
    named = identify(server)
    if named != (nonce, server.pid):
        raise ServerFailed(
            f"{server.name} on port {server.port} names itself {named} instead of {(nonce, server.pid)}; "
            f"its log ends:\n{server.log_tail()}"
        )
    return True


def _listens(server: Server) -> bool:
    try:
        connections = psutil.Process(server.pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr[1] == server.port for c in connections)
