"""Benchmarks as paired ratios: on a noisy machine only what was measured side by side can be compared.

Blocks of subject and reference alternate, and the same run measures the reference against itself. A goal is
met if the median ratio, over that A/A median, is within its bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

ROUNDS = 9

Say = Callable[[str], None]
"""Shows a line of progress."""
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
