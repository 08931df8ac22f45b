"""What an audit has to know of the earlier part of a run that goes on: a pure function of its trace."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gymqual.harness.records.trace import Call, Episode, Pass, Record, Row, Step

Sampled = tuple[str, list[float | None]]
"""Digest of the policy that sampled a rollout, and its log-probability of every completion id; None where none was."""


@dataclass
class Past:
    """The earlier part of a run, up to the end of an optimizer step."""

    rows: list[Row] = field(default_factory=list)
    sampled_by: dict[int, Sampled] = field(default_factory=dict)
    """By rollout."""
    episodes: list[Episode] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    pending: list[Row] = field(default_factory=list)
    """Rows of the last generation batch, which may be trained again."""
    uses: dict[int, int] = field(default_factory=dict)
    """How often each of them was trained."""


def read_past(trace: Iterable[Record]) -> Past:
    """Return the earlier part of a run from its trace."""
    past, calls, passes = Past(), list[Call](), list[Pass]()
    for record in trace:
        match record:
            case Row():
                past.rows.append(record)
            case Call():
                calls.append(record)
            case Pass():
                passes.append(record)
            case Step():
                past.steps.append(record)
            case Episode():
                past.episodes.append(record)
    by_rollout = {row.rollout: row for row in past.rows}
    for call in calls:
        row = by_rollout[call.rollout]
        _, drawn = past.sampled_by.setdefault(call.rollout, (call.policy, [None] * len(row.completion)))
        start = len(call.context) - len(row.prompt)
        kept = min(len(call.sampled), len(row.completion) - start)
        drawn[start : start + kept] = call.logprobs[:kept]
    last = max((row.generation for row in past.rows), default=0)
    past.pending = [row for row in past.rows if row.generation == last]
    past.uses = {row.rollout: 0 for row in past.pending}
    for made in passes:
        if made.rollout in past.uses:
            past.uses[made.rollout] += 1
    return past
