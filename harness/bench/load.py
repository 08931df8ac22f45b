"""Many sessions at once, on one event loop, each playing episode after episode.

Standard library only: it runs beside upstream's own client as well, in that client's interpreter.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import ceil
from typing import TypeVar

Result = TypeVar("Result")


class Clock:
    """Takes the time of tool calls."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []

    async def call(self, call: Awaitable[Result]) -> Result:
        """Return the result of one tool call, once its time is taken."""
        started = time.perf_counter()
        result = await call
        self.latencies_s.append(time.perf_counter() - started)
        return result


Episode = Callable[[int, Clock], Awaitable[None]]
"""Plays the episode of this number; raises whatever goes wrong."""


async def play(sessions: int, episodes: int, episode: Episode) -> dict[str, float]:
    """Play ``episodes`` episodes, ``sessions`` at a time, and return what they took.

    ``wall_s`` and this process's ``cpu_s``, the number of tool ``calls``, ``p50_s`` and ``p99_s`` of one. Raises
    RuntimeError naming the first failure if any episode failed: a load with errors has no speed.
    """
    clock, failures = Clock(), []
    # Whoever is done takes the next: all sessions are busy until the last episodes.
    numbers = iter(range(episodes))

    async def session() -> None:
        for number in numbers:
            try:
                await episode(number, clock)
            except Exception as error:
                failures.append(error)

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(session() for _ in range(sessions)))
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    if failures:
        raise RuntimeError(f"{len(failures)} of {episodes} episodes failed, first {failures[0]!r}")
    latencies = sorted(clock.latencies_s)
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "calls": len(latencies),
        "p50_s": percentile(latencies, 50),
        "p99_s": percentile(latencies, 99),
    }


def percentile(ascending: list[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of 100 do not exceed; raises ValueError for no values."""
    if not ascending:
        raise ValueError("no values, no percentile")
    return ascending[max(0, ceil(percent / 100 * len(ascending)) - 1)]
