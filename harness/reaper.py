"""Kills what a dead owner left behind.

Run as a script with the owner's nonce and a pipe on standard input. The owner holds the other end and never
writes: end of file means that it is gone, however it ended. Every process whose environment holds exactly
``GYMQUAL_RUN=<nonce>`` is then killed, daemonised grandchildren included, since a variable is inherited where
parentage and process groups are not. A process that replaces its environment escapes; nothing here does.
"""

import sys
import time

import psutil

RUN_VARIABLE = "GYMQUAL_RUN"
SERVER_VARIABLE = "GYMQUAL_SERVER"
_PAUSE_S = 0.1
_QUIET_SCANS = 3


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
    sys.stdin.buffer.read()
    # Several scans: a child between fork and exec still has the owner's environment and not the mark.
    kill_marked(RUN_VARIABLE, sys.argv[1], quiet_scans=_QUIET_SCANS)
