"""Kills what a dead owner left behind.

Run as a script with the owner's nonce and pid, and a pipe on standard input. A byte means that the owner
closes; end of file, or another parent, that it is gone, however it ended. Every process whose environment
holds exactly ``GYMQUAL_RUN=<nonce>`` is then killed, daemonised grandchildren included, since a variable is
inherited where parentage and process groups are not. A process that replaces its environment escapes;
nothing here does. Killing both owner and reaper leaves servers alive.
"""

import os
import sys
import time
from select import select

import psutil

RUN_VARIABLE = "GYMQUAL_RUN"
SERVER_VARIABLE = "GYMQUAL_SERVER"
_PAUSE_S = 0.1
_LOOK_S = 1.0
QUIET_SCANS = 3
"""Several scans: a child between fork and exec still has its owner's environment and not the mark."""


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Return the living processes whose environment holds exactly ``variable=value``; zombies are gone."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def kill_marked(variable: str, value: str, quiet_scans: int = 1, limit_s: float = 10.0) -> list[int]:
    """Kill every marked process until ``quiet_scans`` scans in a row find none; return the pids killed.

    Raises TimeoutError when some are still alive after ``limit_s`` seconds.
    """
    killed: list[int] = []
    deadline = time.monotonic() + limit_s
    quiet = 0
    while quiet < quiet_scans:
        alive = marked(variable, value)
        quiet = 0 if alive else quiet + 1
        for process in alive:
            try:
                process.kill()
                killed.append(process.pid)
            except psutil.Error:
                continue
        if alive and time.monotonic() > deadline:
            raise TimeoutError(f"processes {[process.pid for process in alive]} survived SIGKILL for {limit_s} s")
        if quiet < quiet_scans:
            time.sleep(_PAUSE_S)
    return killed


if __name__ == "__main__":
    nonce, owner = sys.argv[1], int(sys.argv[2])
    # A process that the owner forked and that outlives it keeps the pipe open: hence the look at the parent.
    while not select([sys.stdin], [], [], _LOOK_S)[0] and os.getppid() == owner:
        pass
    kill_marked(RUN_VARIABLE, nonce, quiet_scans=QUIET_SCANS)
