"""What the rollout viewer shows: every turn of every rollout, its ids told apart by where they came from."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymqual.harness.records.legend import Legend, read_legend
from gymqual.harness.records.trace import TRACE, Call, Episode, Header, Pass, Row, Step, read_trace

PROMPT, TRAINED, UNTRAINED, OBSERVATION, FRAMING, EXTERNAL, LEAKED = range(7)
"""Kinds of an id, as the viewer knows them. ``EXTERNAL`` is observation or framing, not told apart; ``LEAKED`` is one
of them that the loss is taken on."""
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
    weights: dict[str, float] = field(default_factory=dict)
    """Weight of each reward column in training; 0 of those that are only reported."""

    def steps_of(self) -> dict[int, list[int]]:
        """Return the optimizer steps that each rollout was trained in: several, where a batch is gone through again."""
        found: dict[int, list[int]] = {}
        for step in self.steps:
            for rollout in step.rollouts:
                found.setdefault(rollout, []).append(step.step)
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
            case Header():
                seen.weights = record.objective.reward_weights
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
    steps = seen.steps_of()
    numbers = sorted(seen.calls.keys() | seen.episodes.keys() | seen.rows.keys())
    return [_rollout(number, seen, steps.get(number, [])) for number in numbers]


def leaked(made: list[dict[str, Any]]) -> int:
    """Return how many ids that no model sampled the loss is taken on, of the viewer's rollouts."""
    segments = (segment for rollout in made for segment in rollout["segments"])
    return sum(end - start for kind, start, end, *_ in segments if kind == LEAKED)


def _rollout(number: int, seen: Seen, steps: list[int]) -> dict[str, Any]:
    episode, row, calls = seen.episodes.get(number), seen.rows.get(number), seen.calls.get(number, [])
    ids, kinds = _of_row(row) if row else _of_calls(calls)
    if seen.legend is not None and episode is not None:
        _tell_apart(ids, kinds, [use.text for use in episode.calls], seen.legend)
    made: dict[str, Any] = {
        "number": number,
        "steps": steps,
        "group": row.group if row else calls[0].group if calls else None,
        "ids": ids,
        "segments": _segments(kinds, _drawn(ids, calls), _of_loss(row, seen.passes.get(number))),
        "advantage": row.advantage if row else None,
        "rewards": [[name, value, seen.weights.get(name)] for name, value in row.rewards.items()] if row else [],
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
    if episode is None:
        return "no episode"
    if episode.reward is None:
        return "no reward"
    return "success" if episode.strict else "failed"


# ---- ids by where they came from ---------------------------------------------------------------------


def _of_row(row: Row) -> tuple[list[int], list[int]]:
    """Return a row's ids, and the kind of each: by its span, and by whether the loss is taken on it."""
    kinds = [LEAKED if kept else EXTERNAL for kept in row.mask] + [EXTERNAL] * (len(row.completion) - len(row.mask))
    for span in row.spans:
        if span.source == "sampled":
            kinds[span.start : span.end] = [TRAINED if kept else UNTRAINED for kept in row.mask[span.start : span.end]]
    return row.prompt + row.completion, [PROMPT] * len(row.prompt) + kinds[: len(row.completion)]


def _of_calls(calls: list[Call]) -> tuple[list[int], list[int]]:
    """Return the same of a rollout that was never trained: what it saw and drew, turn by turn."""
    ids: list[int] = []
    kinds: list[int] = []
    for call in calls:
        kinds = (kinds + [EXTERNAL if ids else PROMPT] * len(call.context))[: len(call.context)]
        ids = call.context + call.sampled
        kinds += [UNTRAINED] * len(call.sampled)
    return ids, kinds


def _drawn(ids: list[int], calls: list[Call]) -> dict[int, float]:
    """Return the sampler's log-probability of every drawn id that is among these, by its place."""
    return {
        len(call.context) + place: round(logprob, DIGITS)
        for call in calls
        for place, (token, logprob) in enumerate(zip(call.sampled, call.logprobs, strict=False))
        if ids[len(call.context) + place : len(call.context) + place + 1] == [token]
    }


def _of_loss(row: Row | None, forward: Pass | None) -> dict[int, float]:
    """Return the loss's own log-probability of every id that it is taken on, by its place."""
    if row is None or forward is None:
        return {}
    values = zip(forward.logprobs, row.mask, strict=False)
    return {len(row.prompt) + place: round(value, DIGITS) for place, (value, kept) in enumerate(values) if kept}


def _segments(kinds: list[int], drawn: dict[int, float], loss: dict[int, float]) -> list[list[Any]]:
    """Return stretches of one kind: kind, start, end (exclusive), and of each id what sampler and loss say of it."""
    made: list[list[Any]] = []
    for place, kind in enumerate(kinds):
        if not made or made[-1][0] != kind:
            made.append([kind, place, place, [], []])
        made[-1][2] = place + 1
        if kind in (TRAINED, UNTRAINED, LEAKED):
            made[-1][3].append(drawn.get(place))
            made[-1][4].append(loss.get(place))
    return made


def _tell_apart(ids: list[int], kinds: list[int], texts: list[str], legend: Legend) -> None:
    """Tell observations from the framing around them, as far as each is found where it must stand.

    From an observation on that is not found, as its template writes it otherwise, nothing is told apart.
    """
    left = [text for text in texts if text]
    for start, end in _stretches(kinds):
        if not left:
            # After the last observation there is framing alone.
            kinds[start:end] = [FRAMING] * (end - start)
            continue
        lengths = [len(legend.bytes_of(token)) for token in ids[start:end]]
        spelt = b"".join(legend.bytes_of(token) for token in ids[start:end]).decode("utf-8", "surrogateescape")
        found, position = list[tuple[int, int]](), 0
        while left and (place := _shown(left[0]).search(spelt, position)):
            found.append(place.span())
            position = place.end()
            left.pop(0)
        if not found:
            return
        kinds[start:end] = [FRAMING] * (end - start)
        for begins, ends in found:
            first, last = _tokens_over(
                lengths, *(len(spelt[:at].encode("utf-8", "surrogateescape")) for at in (begins, ends))
            )
            kinds[start + first : start + last] = [OBSERVATION] * (last - first)


def _stretches(kinds: list[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of every stretch of ids that are observation or framing."""
    start = None
    for place, kind in enumerate([*kinds, PROMPT]):
        if kind == EXTERNAL and start is None:
            start = place
        elif kind != EXTERNAL and start is not None:
            yield start, place
            start = None


def _shown(text: str) -> re.Pattern[str]:
    """Return a pattern of an observation, plain or within a JSON string, that is not a part of a longer word."""
    forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    either = "|".join(re.escape(form) for form in dict.fromkeys(forms))
    return re.compile(rf"(?<![\w,/-])(?:{either})(?![\w,/])")


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
