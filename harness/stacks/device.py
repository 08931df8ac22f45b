"""One training at a time on an accelerator: a lock that dies with its holder."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.environments import cache_folder

WAIT_S = 24 * 3600.0
"""Another training may take hours."""
_LOOK_S = 10.0


@contextmanager
def exclusively(device: str, say: Callable[[str], object], limit_s: float = WAIT_S) -> Iterator[None]:
    """Hold an accelerator; wait, saying for whom, while another process does.

    ``device`` is its name; a CPU is shared. The lock is the operating system's, so that it is gone with its holder,
    killed or not. Raises HarnessError after ``limit_s`` seconds.
    """
    if device.startswith("cpu"):
        yield
        return
    path = cache_folder().parent / "devices" / f"{'-'.join(device.split())}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    holder, lock = path.with_suffix(".pid"), FileLock(path)
    until = time.monotonic() + limit_s
    while True:
        try:
            lock.acquire(timeout=min(_LOOK_S, max(0.0, until - time.monotonic())))
            break
        except Timeout:
            whose = f"{device} is held by process {_text(holder)} ({path})"
            if time.monotonic() >= until:
                raise HarnessError(f"{whose}, for {limit_s:.0f} s now; end it, or wait for it") from None
            say(f"{whose}; waiting")
    try:
        holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return "unknown"
