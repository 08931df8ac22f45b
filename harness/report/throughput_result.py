"""What a throughput bench measured, as it is written to disk, and what follows from it."""

from math import inf
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gymqual.harness.records.figures import Figure, ratios

FORMAT = "gymqual.throughput/1"
RESULT = "throughput.json"

MEASURES = {
    "wall": "wall time per episode",
    "services": "CPU per episode, services",
    "processes": "CPU per episode, all processes",
    "p50": "tool call, p50",
    "p99": "tool call, p99",
}
"""Everything is better when it is smaller. Services are the server, and for OpenEnv the bridge as well; all processes
are these and the one that makes the load, on upstream's side upstream's server and client."""

GOALS = {
    "nemo": {"wall": 1.3, "services": 1.15, "processes": 1.15, "p50": 1.3, "p99": 2.0},
    "openenv": {"wall": 2.5, "services": 2.5, "processes": 2.0, "p50": 2.0, "p99": 2.5},
}
"""Ratio over upstream at most, at any number of sessions.

NeMo's are those of a single call; a hundredth of the calls waits for a core more than for anything of ours. OpenEnv's
have room for the bridge, one process more of about an SDK client's cost: a server (1.15) and that client (0.7 of a
server under many sessions, 1 with one) make 2, and with one session nothing hides the switches between three processes
on two cores. They are meant to notice a layer that has become half as slow again.
"""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Level(_Model):
    """One gym at one number of sessions."""

    gym: str
    sessions: int
    """At once."""
    episodes: int
    """Of a block."""
    rounds: dict[str, tuple[tuple[float, float, float], ...]]
    """By measure, in seconds: upstream, ours, and upstream again, of every round."""

    def ratio(self, measure: str) -> float:
        """Return ours over upstream's, free of what upstream's differs from itself."""
        ratio, control = ratios(self.rounds[measure])
        return ratio / control

    def ours(self, measure: str) -> float:
        """Return the median over our blocks, seconds."""
        return median(tried for _, tried, _ in self.rounds[measure])

    def upstream(self, measure: str) -> float:
        """Return the median over upstream's blocks, seconds."""
        return median(each for first, _, second in self.rounds[measure] for each in (first, second))

    def goal(self, measure: str) -> float:
        """Return the largest ratio that is accepted; infinity where there is no goal."""
        return GOALS.get(self.gym, {}).get(measure, inf)


class Throughput(_Model):
    """The whole measurement."""

    format: Literal["gymqual.throughput/1"] = FORMAT
    machine: str
    """Processor, and how many of it."""
    load: float
    """Average load of the machine in the minute before."""
    versions: dict[str, str]
    """Of upstreams, and of the interpreters."""
    levels: tuple[Level, ...]


def figures(measured: Throughput) -> list[Figure]:
    """Return every ratio with its goal."""
    made = []
    for level in measured.levels:
        for measure, name in MEASURES.items():
            ratio, control = ratios(level.rounds[measure])
            note = f"raw {ratio:.3f}, A/A {control:.3f}"
            title = f"{level.gym} at {level.sessions}: {name}"
            made.append(Figure(title, level.ratio(measure), level.goal(measure), "x", note))
    return made
