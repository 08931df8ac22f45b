"""The CPython that a stack is built with: named by the user, found on the machine, or fetched by uv."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import uv

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.specs import StackSpec, Version, dotted


def named_interpreter(spec: StackSpec) -> tuple[str, Version] | None:
    """Return the interpreter that the user names for a stack, with its version; raises HarnessError for a wrong one."""
    path = os.environ.get(spec.variable)
    if not path:
        return None
    version = version_of(path)
    if version is None:
        raise HarnessError(f"{spec.variable}={path} is not a CPython interpreter; name one >= {dotted(spec.floor)}")
    if version < spec.lowest:
        raise HarnessError(
            f"{spec.variable}={path} is CPython {dotted(version)}; {spec.name} needs {dotted(spec.floor)} or newer"
        )
    return str(Path(which(path) or path).resolve()), version


def installed_interpreters() -> Iterator[str]:
    """Yield paths of interpreters on this machine, some of them several times."""
    yield sys.executable
    for minor in range(11, 16):
        found = which(f"python3.{minor}")
        if found:
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, pyenv.glob("versions/3.1*/bin/python3"))
    listed = subprocess.run(
        [uv.find_uv_bin(), "--no-config", "python", "list", "--only-installed", "--output-format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode == 0:
        yield from (entry["path"] for entry in json.loads(listed.stdout) if entry["path"])


def best_interpreter(paths: Iterator[str], spec: StackSpec) -> tuple[str, Version] | None:
    """Return the interpreter that a stack is best built with, None if none is accepted."""
    found = {str(Path(path).resolve()): version for path in paths if (version := version_of(path))}
    usable = [(path, version) for path, version in found.items() if version >= spec.lowest]

    def preference(item: tuple[str, Version]) -> tuple[bool, int, int]:
        """First what meets the floor, then the minor version nearest to it, then the newest patch release."""
        version = item[1]
        return version >= spec.floor, -abs(version[1] - spec.floor[1]), version[2]

    return max(usable, key=preference, default=None)


def download_interpreter(spec: StackSpec) -> tuple[str, Version] | None:
    """Let uv install an interpreter and return the best one there is then; None if it could not."""
    minor = f"{spec.floor[0]}.{spec.floor[1]}"
    fail_fast = {**os.environ, "UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "5"}
    command = [uv.find_uv_bin(), "--no-config", "python", "install", minor]
    try:
        installed = subprocess.run(command, env=fail_fast, capture_output=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return None
    return best_interpreter(installed_interpreters(), spec) if installed.returncode == 0 else None


def version_of(path: str) -> Version | None:
    """Return a CPython's version; None for anything else, such as a shim that finds no interpreter."""
    question = "import sys; assert sys.implementation.name == 'cpython'; print(*sys.version_info[:3])"
    try:
        answer = subprocess.run(
            [path, "-I", "-c", question], capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
        major, minor, patch = map(int, answer.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return (major, minor, patch) if answer.returncode == 0 else None
