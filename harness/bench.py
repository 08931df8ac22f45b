"""Benchmarks as paired ratios: on a noisy machine only what was measured side by side can be compared.

Blocks of subject and reference alternate, and the same run measures the reference against itself. A goal is
met if the median ratio, over that A/A median, is within its bound.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from harness.process import Owner, Server

CALLS_PER_BLOCK = 300
CALLS_PER_SESSION = 50
ROUNDS = 9
WARM_UP_SESSIONS = 200
SESSIONS = 2000

Say = Callable[[str], None]
Block = TypeVar("Block")


@dataclass(frozen=True)
class Figure:
    """One measured figure and its bound."""

    name: str
    value: float
    bound: float
    unit: str
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.value <= self.bound


def interleaved(
    subject: Callable[[], Block], reference: Callable[[], Block], rounds: int
) -> list[tuple[Block, Block, Block]]:
    """Return reference, subject and reference again of every round."""
    return [(reference(), subject(), reference()) for _ in range(rounds)]


def ratios(rounds: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return (median of subject / reference, median of reference / reference) over interleaved blocks."""
    return (
        median(tried / ((first + second) / 2) for first, tried, second in rounds),
        median(second / first for first, _, second in rounds),
    )


def paired(subject: Callable[[], float], reference: Callable[[], float], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return ``ratios`` of interleaved blocks."""
    return ratios(interleaved(subject, reference, rounds))


def paired_figure(
    name: str, subject: Callable[[], float], reference: Callable[[], float], bound: float, rounds: int = ROUNDS
) -> Figure:
    """Measure a ratio over interleaved blocks, free of what the reference differs from itself."""
    ratio, control = paired(subject, reference, rounds)
    return Figure(name, ratio / control, bound, "x", f"raw {ratio:.3f}, A/A {control:.3f}")


def growth_figures(server: Server, sessions: Callable[[int], None]) -> list[Figure]:
    """Let a fresh server carry many sessions after a warm-up, and measure what it keeps of them."""
    sessions(WARM_UP_SESSIONS)
    rss, descriptors = server.rss_bytes(), server.descriptors()
    sessions(SESSIONS)
    grown_mb = (server.rss_bytes() - rss) / 2**20
    return [
        Figure(f"resident memory grown over {SESSIONS} sessions", grown_mb, 32.0, "MB"),
        Figure(
            f"descriptors grown over {SESSIONS} sessions", abs(server.descriptors() - descriptors), 0, "descriptors"
        ),
    ]


@contextmanager
def owned() -> Iterator[tuple[Path, Owner]]:
    """A folder and an owner of servers, both gone at the end."""
    owner = Owner()
    try:
        with tempfile.TemporaryDirectory(prefix="gymqual-bench-") as folder:
            yield Path(folder), owner
    finally:
        owner.close()
