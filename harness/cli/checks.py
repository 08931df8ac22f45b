"""What commands ask of their options beyond the type, and how signals end them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gymqual.harness.records.errors import HarnessError


def require_at_least_one(option: str, value: int) -> None:
    """Raise HarnessError for a count that is none."""
    if value < 1:
        raise HarnessError(f"{option} {value} must be at least 1")


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: what was finished is kept, and the gym's service is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
