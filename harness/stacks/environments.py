"""One isolated, locked environment per gym, built once and found again.

A stack is a virtual environment made by uv from a hashed lock, cached outside the checkout. Its key is
(lock digest, full Python version, platform, installer flags). It is built in place under a file lock and
counts only once its ``complete.json`` is there, which is written last; a half-built one is built again.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree, which

import uv
from filelock import FileLock, Timeout

from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.stacks.interpreters import (
    best_interpreter,
    download_interpreter,
    installed_interpreters,
    named_interpreter,
    version_of,
)
from gymqual.harness.stacks.specs import STACKS, StackSpec, Version, dotted

INSTALL_FLAGS = ("--require-hashes", "--compile-bytecode")
"""Without byte code, upstream's imports cost NeMo's start 6.8 instead of 2.6 CPU seconds."""
BUILD_LIMIT_S = 1800
_COMPLETE = "complete.json"

AS_IT_IS = ("as it is",)
"""Flags of an environment that was named by its owner and not built from a lock."""


@dataclass(frozen=True)
class Stack:
    """A built environment."""

    name: str
    python: str
    """Path of the environment's interpreter."""
    base_python: str
    """Path of the interpreter it was made from."""
    version: str
    """Full version of that interpreter."""
    lock_sha256: str
    """Of the lock's bytes; of an environment that is used as it is, of its sorted lines ``name==version``."""
    platform: str
    flags: tuple[str, ...]
    deviation: str | None
    """How it departs from what upstream asks for."""


def cache_folder() -> Path:
    """Return where stacks are kept: ``GYMQUAL_CACHE``, or ``gymqual`` in the user's cache folder."""
    named = os.environ.get("GYMQUAL_CACHE")
    cache = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gymqual"
    return cache.resolve() / "stacks"


def secret_file(port: int) -> Path:
    """Return where ``gymqual serve`` leaves the bridge secret of the service on a port."""
    return cache_folder().parent / "serve" / f"{port}.secret"


def find_stack(name: str) -> Stack:
    """Return the built stack of a gym without building anything; raises NotTestable with the fix."""
    spec = STACKS[name]
    named = named_interpreter(spec)
    if named and (own := _own_environment(spec, named[1])):
        return own
    lock_sha256 = sha256_file(spec.lock)
    matching = [
        stack
        for stack in _complete_stacks(spec)
        if stack.lock_sha256 == lock_sha256
        and stack.flags == INSTALL_FLAGS
        and (named is None or stack.version == dotted(named[1]))
    ]
    if not matching:
        raise NotTestable(f"the {name} stack is not set up; run: gymqual setup {name}")
    return min(matching, key=lambda stack: (stack.deviation is not None, stack.version))


def set_up(name: str, say: Callable[[str], None]) -> Stack:
    """Return a gym's stack, building it if it is missing. Raises HarnessError; ``say`` gets progress lines."""
    spec = STACKS[name]
    named = named_interpreter(spec)
    try:
        present = find_stack(name)
    except NotTestable:
        present = None
    if present and (named or present.deviation is None):
        return present
    base, version = named or best_interpreter(installed_interpreters(), spec) or ("", (0, 0, 0))
    if version < spec.floor and named is None and present is None:
        say(f"{name}: no CPython >= {dotted(spec.floor)} found; asking uv for one")
        base, version = download_interpreter(spec) or (base, version)
    if version < spec.lowest:
        raise HarnessError(
            f"{name} needs CPython {dotted(spec.floor)} or newer"
            + (f" (found {dotted(version)} at {base})" if base else " and none was found")
            + f"; install one and name it with {spec.variable}=/path/to/python"
        )
    if present and present.version == dotted(version):
        return present
    return _build(spec, base, version, say)


def _build(spec: StackSpec, base: str, version: Version, say: Callable[[str], None]) -> Stack:
    lock_sha256 = sha256_file(spec.lock)
    parts = (lock_sha256, dotted(version), _platform(), *INSTALL_FLAGS)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder = cache_folder() / f"{spec.name}-{key}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = FileLock(f"{folder}.lock")
        try:
            building.acquire(timeout=0)
        except Timeout:
            say(f"{spec.name}: another set-up is building it; waiting")
            building.acquire(timeout=BUILD_LIMIT_S)
    except Timeout:
        raise HarnessError(f"{spec.name}: another set-up held {folder}.lock for {BUILD_LIMIT_S} s; end it") from None
    except OSError as error:
        raise HarnessError(f"cannot write {folder.parent} ({error}); set GYMQUAL_CACHE to a writable folder") from None
    with building:
        if (folder / _COMPLETE).is_file():
            return _read(folder / _COMPLETE)
        rmtree(folder, ignore_errors=True)
        deviation = f"CPython {dotted(version)} is below {spec.floor_is} {dotted(spec.floor)}"
        # uv would refuse what an older patch release runs as well.
        pretend = () if version >= spec.resolved_for else ("--python-version", dotted(spec.resolved_for))
        python = folder / "bin" / "python"
        say(f"{spec.name}: building with CPython {dotted(version)} from {spec.lock.name}")
        _uv(spec, folder, "venv", "--python", base, str(folder))
        _uv(spec, folder, "pip", "sync", "--python", str(python), *pretend, *INSTALL_FLAGS, str(spec.lock))
        stack = Stack(
            name=spec.name,
            python=str(python),
            base_python=base,
            version=dotted(version),
            lock_sha256=lock_sha256,
            platform=_platform(),
            flags=INSTALL_FLAGS,
            deviation=None if version >= spec.floor else deviation,
        )
        write_atomically(folder / _COMPLETE, readable_json(asdict(stack)))
        return stack


def _uv(spec: StackSpec, folder: Path, *arguments: str) -> None:
    log = Path(f"{folder}.log")
    with log.open("ab") as output:
        command = [uv.find_uv_bin(), "--no-config", *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + BUILD_LIMIT_S
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise HarnessError(
            f"{spec.name}: uv could not install {spec.lock.name} (network, or a lock that does not resolve: "
            f"make lock); the log {log} ends:\n{tail}"
        )


def _own_environment(spec: StackSpec, version: Version) -> Stack | None:
    """Return the environment of a named interpreter as it is, if it holds the gym: for machines without a network.

    Raises HarnessError for another version of the gym than is examined.
    """
    named = os.environ[spec.variable]
    python = Path(which(named) or named).absolute()
    question = (
        "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    )
    try:
        answer = subprocess.run([python, "-I", "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{spec.variable}={named} did not list its packages within 60 s; name another") from None
    listed = sorted({line.lower().replace("_", "-") for line in answer.stdout.splitlines()})
    installed = dict(line.split("==", 1) for line in listed if "==" in line)
    if spec.distribution not in installed:
        return None
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", spec.lock.read_text(encoding="utf-8"), re.MULTILINE)
    due = {name.lower(): pin for name, pin in pins}
    if installed[spec.distribution] != due[spec.distribution]:
        raise HarnessError(
            f"{spec.variable}={named} holds {spec.distribution} {installed[spec.distribution]}, "
            f"{due[spec.distribution]} is examined; install that, or name an interpreter without it"
        )
    differing = [f"{name} {installed[name]} for {pin}" for name, pin in due.items() if installed.get(name, pin) != pin]
    return Stack(
        name=spec.name,
        python=str(python),
        base_python=str(python),
        version=dotted(version),
        lock_sha256=hashlib.sha256("\n".join(listed).encode()).hexdigest(),
        platform=_platform(),
        flags=AS_IT_IS,
        deviation=f"an environment of its own, not the lock's; differing: {', '.join(differing) or 'none'}",
    )


def _platform() -> str:
    return "-".join((sysconfig.get_platform(), *platform.libc_ver()))


def _complete_stacks(spec: StackSpec) -> Iterator[Stack]:
    for marker in sorted(cache_folder().glob(f"{spec.name}-*/{_COMPLETE}")):
        stack = _read(marker)
        # The interpreter it was made from may have been removed or replaced since.
        if version_of(stack.python) == tuple(map(int, stack.version.split("."))):
            yield stack


def _read(marker: Path) -> Stack:
    try:
        fields = json.loads(marker.read_text(encoding="utf-8"))
        return Stack(**{**fields, "flags": tuple(fields["flags"])})
    except (ValueError, TypeError, KeyError):
        raise HarnessError(f"{marker} is damaged; remove its folder and set up again") from None
