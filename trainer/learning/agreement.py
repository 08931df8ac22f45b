"""Whether two trainings sampled the same ids, turn by turn, by their traces."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gymqual.harness.records.run_records import StrictModel
from gymqual.harness.records.trace import TRACE, Call, read_trace


class Difference(StrictModel):
    """The first sampled turn in which two arms differ."""

    rollout: int
    turn: int
    position: int
    """Of the first other id among the turn's sampled ids; -1 if the turn, or what it saw, is another one already."""


class Agreement(StrictModel):
    """Whether two arms sampled the same ids: they have the same core, tasks and seed."""

    arms: tuple[str, str]
    calls: int
    """Sampled turns that were compared."""
    tokens: int
    """Sampled ids of them."""
    first_difference: Difference | None
    same_trace: bool
    """Whether the traces are the same bytes."""
    same_adapter: bool
    """Whether the trained adapters are the same bytes."""


@dataclass(frozen=True)
class Compared:
    """How far two traces are the same."""

    calls: int
    tokens: int
    first_difference: Difference | None


def compare_traces(one: Path, other: Path) -> Compared:
    """Compare what two training runs sampled; raises HarnessError for a trace that cannot be read."""
    calls = tokens = 0
    difference = None
    for mine, theirs in itertools.zip_longest(_calls(one), _calls(other)):
        difference = _difference(mine, theirs)
        if difference is not None:
            break
        calls, tokens = calls + 1, tokens + len(mine.sampled)
    return Compared(calls, tokens, difference)


def _calls(folder: Path) -> Iterator[Call]:
    return (record for record in read_trace(folder / TRACE) if isinstance(record, Call))


def _difference(one: Call | None, other: Call | None) -> Difference | None:
    """Return how two turns differ, of which one may be missing; None if they are alike."""
    present = one or other
    assert present is not None, "one of two runs has a turn left"
    position = -1
    if one and other and (one.rollout, one.turn, one.context) == (other.rollout, other.turn, other.context):
        if one.sampled == other.sampled:
            return None
        pairs = itertools.zip_longest(one.sampled, other.sampled)
        position = next(index for index, (a, b) in enumerate(pairs) if a != b)
    return Difference(rollout=present.rollout, turn=present.turn, position=position)
