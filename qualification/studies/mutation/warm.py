"""Runs checks against one mutant after another, each in a fork of a process that has loaded what is slow to load.

    python warm.py PACKAGE...

in the copy of the tree that is mutated. Reads one JSON object a line, ``{"module", "content", "commands", "limit_s",
"log"}``, and answers each by ``{"ended", "by", "seconds"}``: ``ended`` is ``passed``, ``failed`` or ``timed out``,
``by`` the check that failed, ``seconds`` those of a CPU, which other work on the machine leaves as they are.

torch takes longer to load than most mutants live. Nothing of the product is loaded before a fork.
"""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NO_TEST_FAILED = {0: "passed", 5: "no check was selected"}


class FirstFailure:
    """A plugin of pytest that notes which check failed, or which file could not be loaded."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._note.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._note.write_text(report.nodeid)


def run(command: list[str], log: Path, note: Path, limit_s: float) -> tuple[str, float]:
    """Run pytest in a fork; return how it ended and the CPU seconds that it took."""
    child = os.fork()
    if child == 0:
        _check(command, log, note)
    ends_at = time.monotonic() + limit_s
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            # A child that a signal ended did not pass either.
            return NO_TEST_FAILED.get(os.waitstatus_to_exitcode(status), "failed"), used.ru_utime + used.ru_stime
        if time.monotonic() > ends_at:
            # What it started itself is in its group, or is ended by the harness's own reaper.
            os.killpg(child, signal.SIGKILL)
            _, _, used = os.wait4(child, 0)
            return "timed out", used.ru_utime + used.ru_stime
        time.sleep(0.02)


def _check(command: list[str], log: Path, note: Path) -> None:
    """Become pytest; never returns."""
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.path[0] = os.getcwd()
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *command], [FirstFailure(note)]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def examine(task: dict[str, Any]) -> dict[str, Any]:
    """Put a mutant in its module's place, run its checks, and put the module back."""
    module, log, note = Path(task["module"]), Path(task["log"]), Path(task["log"]).with_suffix(".first")
    note.write_text("")
    whole = module.read_text(encoding="utf-8")
    seconds, ended = 0.0, "passed"
    try:
        module.write_text(task["content"], encoding="utf-8")
        for command in task["commands"]:
            ended, used = run(command, log, note, task["limit_s"])
            seconds += used
            if ended != "passed":
                break
    finally:
        module.write_text(whole, encoding="utf-8")
    return {"ended": ended, "by": note.read_text(), "seconds": round(seconds, 1)}


if __name__ == "__main__":
    for package in sys.argv[1:]:
        importlib.import_module(package)
    for line in sys.stdin:
        print(json.dumps(examine(json.loads(line))), flush=True)
