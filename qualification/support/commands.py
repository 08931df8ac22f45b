"""Running the product's own commands the way a user does: as processes."""

import os
import subprocess
import sys
from pathlib import Path

from gymqual.harness.process.own import own_command, own_environment
from gymqual.harness.records.files import ROOT

LIMIT_S = 240


def run_gymqual(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run ``gymqual`` to its end."""
    return _run(own_command(*map(str, arguments)), {**own_environment(), **environment})


def run_module(module: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a module as a command, to its end."""
    return _run([sys.executable, "-m", module, *map(str, arguments)], {})


def run_pytest(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest to its end."""
    return _run([sys.executable, "-m", "pytest", "-q", *map(str, arguments)], environment)


def _run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
