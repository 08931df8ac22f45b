"""A real pytest in a session of its own, to be ended in every way, and what it leaves behind."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2
from typing import Self, TypeVar

import psutil
import pytest

from gymqual.harness.process import reaper

GONE_WITHIN_S = 15.0
"""A parallel worker whose controller is dead needs over five of them to notice."""
PATIENCE_S = 120.0
"""For what takes a few seconds on an idle machine and has to happen before anything can be judged."""
_PYTEST_VARIABLE = "LIFECYCLE_PYTEST"

Found = TypeVar("Found")


@dataclass(frozen=True)
class Started:
    """What a pytest has started."""

    nonce: str
    tester: int
    """Pid of the process that runs the test; in a parallel run that is a worker."""
    pids: tuple[int, ...]
    ports: tuple[int, ...]
    spared: int = 0
    """Pid of a process that is not ours to end."""

    @property
    def names(self) -> set[str]:
        """What all of it is called by ``PytestRun.left_behind``."""
        return {f"process {pid}" for pid in self.pids} | {f"port {port}" for port in self.ports}


class PytestRun:
    """``python -m pytest ARGUMENTS``; whatever is left of it is killed on leaving the context."""

    def __init__(self, cwd: Path, output: Path, *arguments: str) -> None:
        self._token = secrets.token_hex(16)
        self._output = output
        self._started: Started | None = None
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
                cwd=cwd,
                # Inherited by workers and reaper, which belong to what must be gone as well.
                env={**inherited, _PYTEST_VARIABLE: self._token},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._started is None:
            # What it started is known to its reaper alone, which is killed below.
            self.left_behind()
        for variable, value in self._marks().items():
            reaper.kill_marked(variable, value)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the pytest process, and to no other."""
        self._process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to pytest and its workers, as a terminal does."""
        os.killpg(self._process.pid, number)

    def exit_code(self) -> int:
        """Wait for the end; negative for a signal."""
        return self._process.wait(timeout=PATIENCE_S)

    def tiny(self) -> Started:
        """Wait until the throw-away project's test has told what it started."""
        return self._wait_for(self._told)

    def child(self, script: str) -> Started:
        """Wait until a child process runs ``script``, freeze pytest then, and wait until the child listens."""
        server = self._wait_for(lambda: self._running(script))
        # It could be through with its test otherwise before it is killed.
        self.send(signal.SIGSTOP)
        port = self._wait_for(lambda: _listening(server))
        nonce = server.environ()[reaper.RUN_VARIABLE]
        self._started = Started(nonce, self._process.pid, (server.pid,), (port,))
        return self._started

    def child_of(self, word: str) -> psutil.Process:
        """Return the child process that has ``word`` on its command line."""
        children = psutil.Process(self._process.pid).children()
        return next(child for child in children if word in child.cmdline())

    def left_behind(self, limit_s: float = GONE_WITHIN_S) -> Mapping[str, str]:
        """Return what is still there after ``limit_s``; empty as soon as nothing is. Zombies are gone."""
        deadline = time.monotonic() + limit_s
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def _left(self) -> dict[str, str]:
        ports = self._started.ports if self._started else ()
        listening = {c.laddr[1] for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr}
        spared = self._started.spared if self._started else 0
        found = (process for mark in self._marks().items() for process in reaper.marked(*mark))
        marked = [process for process in found if process.pid != spared]
        return {f"process {process.pid}": str(process) for process in marked} | {
            f"port {port}": "listens" for port in ports if port in listening
        }

    def _marks(self) -> dict[str, str]:
        servers = {reaper.RUN_VARIABLE: self._started.nonce} if self._started else {}
        return {**servers, _PYTEST_VARIABLE: self._token}

    def _told(self) -> Started | None:
        told = self._output.with_name("started.json")
        if told.exists():
            fields = json.loads(told.read_text(encoding="utf-8"))
            self._started = Started(
                fields["nonce"],
                fields["tester"],
                tuple(fields["pids"]),
                tuple(fields["ports"]),
                fields["spared"],
            )
        return self._started

    def _running(self, script: str) -> psutil.Process | None:
        try:
            children = psutil.Process(self._process.pid).children()
            return next((child for child in children if " ".join(child.cmdline()).endswith(script)), None)
        except psutil.Error:
            return None

    def _wait_for(self, look: Callable[[], Found | None]) -> Found:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # Asked before the look, so that what a pytest did just before its end is not missed.
            ended = self._process.poll()
            found = look()
            if found is not None:
                return found
            if ended is not None or time.monotonic() > deadline:
                said = self._output.read_text(encoding="utf-8", errors="replace")[-3000:]
                pytest.fail(f"pytest (exit code {ended}) started no server to look at; it said:\n{said}")
            time.sleep(0.05)


def throw_away_project(folder: Path, test: str, *options: str) -> PytestRun:
    """Run one test of ``throwaway.py`` in a project of its own."""
    copy2(Path(__file__).with_name("throwaway.py"), folder / "test_throwaway.py")
    # An own root, so that no option of a project further up applies.
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", encoding="utf-8")
    arguments = ("--gymqual-reports", "reports", *options, f"test_throwaway.py::{test}")
    return PytestRun(folder, folder / "output.txt", *arguments)


def _listening(process: psutil.Process) -> int | None:
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return None
    return next((c.laddr[1] for c in connections if c.status == psutil.CONN_LISTEN and c.laddr), None)
