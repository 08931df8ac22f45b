"""What the rollout viewer shows: every turn of every rollout, its ids told apart by where they came from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.trace import TRACE, Call, Episode, Legend, Pass, Row, Step, ToolUse, read_legend, read_trace

PROMPT, TRAINED, UNTRAINED, OBSERVATION, FRAMING, EXTERNAL = range(6)
"""Kinds of a segment, as the viewer knows them: ``EXTERNAL`` is observation or framing, not told apart."""
DIGITS = 4
"""Of a log-probability, after the point."""


@dataclass
class Seen:
    """A trace, by rollout."""

    calls: dict[int, list[Call]] = field(default_factory=dict)
    episodes: dict[int, Episode] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    passes: dict[int, Pass] = field(default_factory=dict)
    """The first pass of each rollout."""
    steps: list[Step] = field(default_factory=list)
    legend: Legend | None = None

    @property
    def step_of(self) -> dict[int, int]:
        """The first optimizer step that each rollout was trained in."""
        found: dict[int, int] = {}
        for step in self.steps:
            for rollout in step.rollouts:
                found.setdefault(rollout, step.step)
        return found


def read(folder: Path) -> Seen:
    """Read a run directory's trace and legend; raises HarnessError."""
    seen = Seen(legend=read_legend(folder))
    for record in read_trace(folder / TRACE):
        match record:
            case Call():
                seen.calls.setdefault(record.rollout, []).append(record)
            case Episode():
                seen.episodes[record.rollout] = record
            case Row():
                seen.rows[record.rollout] = record
            case Pass():
                seen.passes.setdefault(record.rollout, record)
            case Step():
                seen.steps.append(record)
            case _:
                pass
    return seen


def tokens(seen: Seen) -> dict[str, str]:
    """Return what every id is shown as; parts of characters as their bytes."""
    if seen.legend is None:
        return {}
    return {
        str(token): text if isinstance(text, str) else f"⟨{text['hex']}⟩" for token, text in seen.legend.tokens.items()
    }


def rollouts(seen: Seen) -> list[dict[str, Any]]:
    """Return every rollout as plain data for the viewer, in order."""
    steps = seen.step_of
    numbers = sorted(seen.calls.keys() | seen.episodes.keys() | seen.rows.keys())
    return [_rollout(number, seen, steps.get(number)) for number in numbers]


def _rollout(number: int, seen: Seen, step: int | None) -> dict[str, Any]:
    episode, row, calls = seen.episodes.get(number), seen.rows.get(number), seen.calls.get(number, [])
    ids, segments = _of_row(row) if row else _of_calls(calls)
    if episode:
        segments = list(_told_apart(ids, segments, episode, seen.legend))
    made: dict[str, Any] = {
        "number": number,
        "step": step,
        "group": row.group if row else calls[0].group if calls else None,
        "ids": ids,
        "segments": segments,
        "sampled": [round(value, DIGITS) for call in calls for value in call.logprobs],
        "loss": _of_loss(row, seen.passes.get(number)),
        "advantage": row.advantage if row else None,
        "rewards": row.rewards if row else {},
        "cut": row.cut if row else 0,
        "state": _state(episode),
    }
    if episode:
        made |= {
            "task": episode.task_id,
            "family": seen.legend.families.get(episode.task_id, "") if seen.legend else "",
            "outcome": episode.outcome,
            "truncated": episode.truncated,
            "reward": episode.reward,
            "parts": episode.parts,
            "answer": episode.answer,
            "replay": episode.replay,
            "calls": [[use.tool, use.arguments, use.text, use.is_error] for use in episode.calls],
        }
    return made


def _state(episode: Episode | None) -> str:
    if episode is None or episode.reward is None:
        return "no reward"
    return "success" if episode.strict else "failed"


def _of_loss(row: Row | None, forward: Pass | None) -> list[float] | None:
    """Return the loss's own log-probability of every trained id."""
    if row is None or forward is None:
        return None
    return [round(value, DIGITS) for value, kept in zip(forward.logprobs, row.mask, strict=False) if kept]


Segment = list[int]
"""Kind, start, end (exclusive) among the ids."""


def _of_row(row: Row) -> tuple[list[int], list[Segment]]:
    before = len(row.prompt)
    segments = [[PROMPT, 0, before]]
    for span in row.spans:
        kind = EXTERNAL
        if span.source == "sampled":
            kind = TRAINED if all(row.mask[span.start : span.end]) else UNTRAINED
        segments.append([kind, before + span.start, before + span.end])
    return row.prompt + row.completion, segments


def _of_calls(calls: list[Call]) -> tuple[list[int], list[Segment]]:
    """Return ids and segments of a rollout that was never trained: what it saw and drew, turn by turn."""
    ids: list[int] = []
    segments: list[Segment] = []
    for call in calls:
        segments.append([EXTERNAL if ids else PROMPT, len(ids), len(call.context)])
        ids = call.context + call.sampled
        segments.append([UNTRAINED, len(call.context), len(ids)])
    return ids, segments


def _told_apart(ids: list[int], segments: list[Segment], episode: Episode, legend: Legend | None) -> Iterator[Segment]:
    """Tell observations from the framing around them, where the legend spells their ids."""
    uses = list(episode.calls)
    for kind, start, end in segments:
        if kind != EXTERNAL or legend is None:
            yield [kind, start, end]
            continue
        lengths = [len(legend.bytes_of(token)) for token in ids[start:end]]
        spelt = b"".join(legend.bytes_of(token) for token in ids[start:end])
        place = start
        for begins, ends in _observations(spelt, uses):
            first, last = _tokens_over(lengths, begins, ends)
            if start + first > place:
                yield [FRAMING, place, start + first]
            yield [OBSERVATION, start + first, start + last]
            place = start + last
        if end > place:
            yield [FRAMING, place, end]


def _observations(spelt: bytes, uses: list[ToolUse]) -> Iterator[tuple[int, int]]:
    """Yield where the next observations stand in a text, and take them from ``uses``."""
    position = 0
    while uses:
        text = uses[0].text
        forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        found = [(spelt.find(form.encode("utf-8", "replace"), position), form) for form in forms if form]
        place, form = min(((place, form) for place, form in found if place >= 0), default=(-1, ""))
        if place < 0:
            return
        uses.pop(0)
        position = place + len(form.encode("utf-8", "replace"))
        yield place, position


def _tokens_over(lengths: list[int], begins: int, ends: int) -> tuple[int, int]:
    """Return the first id and the one past the last that hold any byte from ``begins`` to ``ends``."""
    first = last = reached = 0
    for number, length in enumerate(lengths):
        if reached + length <= begins:
            first = number + 1
        if reached < ends:
            last = number + 1
        reached += length
    return first, last
