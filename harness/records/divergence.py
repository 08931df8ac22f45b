"""Where two training runs part: the first record of their traces that is not the same."""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gymqual.harness.records.trace import Record, read_trace


@dataclass(frozen=True)
class Parting:
    """The first records, one of each trace, that are not the same."""

    record: int
    """From 1."""
    step: int
    """Optimizer step that they count for, from 1."""
    left: Record | None
    """Null: this trace has ended."""
    right: Record | None

    def __str__(self) -> str:
        return f"record {self.record}, step {self.step}: {_told(self.left, self.right)}"


def first_difference(one: Path, other: Path) -> Parting | None:
    """Return where two traces part, by step, rollout, turn and token; None if nowhere.

    Raises HarnessError for what is no trace.
    """
    step = 1
    for number, (left, right) in enumerate(zip_longest(read_trace(one), read_trace(other)), start=1):
        # Records that hold what is no number are not equal to themselves, but are written the same.
        if left != right and _written(left) != _written(right):
            return Parting(number, step, left, right)
        if left is not None and left.kind == "step":
            step = left.step + 1
    return None


def _written(record: Record | None) -> str:
    return record.model_dump_json() if record else ""


def differing_field(left: Record, right: Record) -> tuple[str, int | None]:
    """Return the first field in which two records of one kind differ, and the first place in it if it is a list."""
    before, after = left.model_dump(mode="json"), right.model_dump(mode="json")
    name = next(name for name, value in before.items() if value != after[name])
    values = (before[name], after[name])
    if not all(isinstance(value, list) for value in values):
        return name, None
    return name, next((n for n, pair in enumerate(zip_longest(*values)) if pair[0] != pair[1]), 0)


def _told(left: Record | None, right: Record | None) -> str:
    present: Any = left or right
    if left is None or right is None:
        return f"one ends, the other has a {present.kind}"
    if left.kind != right.kind:
        return f"a {left.kind} and a {right.kind}"
    before, after = left.model_dump(), right.model_dump()
    name, token = differing_field(left, right)
    places = [f"{place} {before[place]}" for place in ("rollout", "turn") if place in before]
    if token is not None:
        return f"{', '.join([left.kind, *places])}: {name} from token {token}"
    return f"{', '.join([left.kind, *places])}: {name} {str(before[name])[:40]} and {str(after[name])[:40]}"
