"""What the trainer's commands share: their parsers, how they end, and in which words."""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gymqual.gyms.base import InfrastructureError
from gymqual.harness.cli.usage import ending
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.runs.errors import AuditError, Stopped


def run_command(name: str, body: Callable[[], int], *, interrupted: str = "interrupted; nothing was written") -> int:
    """Run a command's body; returns its exit code, or that of what ended it, which is said in one line.

    That is 1 for a stage that did not come to its end, 2 for whatever a user can put right, 130 for Ctrl-C.
    """
    try:
        return body()
    except Stopped as stopped:
        said, code = str(stopped), 1
    except (HarnessError, InfrastructureError, AuditError, OSError) as error:
        said, code = str(error), 2
    except KeyboardInterrupt:
        said, code = interrupted, 130
    print(f"{name}: {said}", file=sys.stderr)
    return code


def command_parser(
    name: str, description: str | None, example: str, codes: Mapping[int, str], *, allow_abbrev: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of ``python -m trainer.NAME``, whose help ends with an example's arguments and exit codes."""
    return argparse.ArgumentParser(
        prog=f"python -m trainer.{name}",
        description=description,
        epilog=ending(f"trainer.{name} {example}", codes),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=allow_abbrev,
    )


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
