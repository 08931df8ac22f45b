"""Tokens: every trained row rebuilt from the calls that sampled it, and from nothing else."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from gymqual.harness.records.trace import Call, Row, Span
from gymqual.trainer.replay.evidence import Evidence
from gymqual.trainer.runs.config import TrainingConfig

ROUNDING = 1e-5
"""A log-probability may exceed 0 by so much: a fused softmax rounds."""


@dataclass(frozen=True)
class Rebuilt:
    """A row as its calls make it."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    spans: list[Span]
    cut: int


def rebuild(calls: Sequence[Call], budget: int) -> Rebuilt | None:
    """Return the row that a rollout's calls make within ``budget`` completion ids.

    None if a call's context is not the ids before it followed by what its environment added.
    """
    if not calls:
        return None
    prompt = calls[0].context
    ids: list[int] = list(prompt)
    spans: list[Span] = []
    for call in calls:
        if call.context[: len(ids)] != ids or (spans and len(call.context) == len(ids)):
            return None
        for source, added in (("external", call.context[len(ids) :]), ("sampled", call.sampled)):
            start = len(ids) - len(prompt)
            if start < budget and added:
                spans.append(Span(source=source, start=start, end=min(start + len(added), budget)))  # type: ignore[arg-type]
            ids += added
    whole = ids[len(prompt) :]
    cut = max(0, len(whole) - budget)
    if cut > len(calls[-1].sampled):
        return None
    mask = [0] * (len(whole) - cut)
    for span in spans:
        if span.source == "sampled":
            mask[span.start : span.end] = [1] * (span.end - span.start)
    return Rebuilt(prompt, whole[: len(mask)], mask, spans, cut)


def rebuilt_rows(evidence: Evidence) -> Iterator[tuple[Row, Rebuilt | None]]:
    """Yield every row with what its calls make of it."""
    for rollout, row in sorted(evidence.rows.items()):
        yield row, rebuild(evidence.calls.get(rollout, []), evidence.header.objective.max_completion_tokens)


def context_faults(evidence: Evidence) -> Iterator[str]:
    """Every call's context is the prompt, what was sampled before, and what the environment added, in order."""
    for rollout, calls in sorted(evidence.calls.items()):
        if [call.turn for call in calls] != list(range(len(calls))):
            yield f"rollout {rollout}: its turns are numbered {[call.turn for call in calls]}"
        for before, call in pairwise(calls):
            ids = before.context + before.sampled
            if call.context[: len(ids)] != ids:
                offset = _first_difference(ids, call.context)
                yield f"rollout {rollout}, turn {call.turn}: context id {offset} is not what stood there before"
            elif len(call.context) == len(ids):
                yield f"rollout {rollout}, turn {call.turn}: nothing was added since the turn before"
        if rollout in evidence.rows and calls[0].context != evidence.rows[rollout].prompt:
            yield f"rollout {rollout}: sampled from another prompt than it is trained on"


def row_faults(evidence: Evidence) -> Iterator[str]:
    """Every row is what its calls make: same ids, spans and cut."""
    for row, rebuilt in rebuilt_rows(evidence):
        where = f"rollout {row.rollout}"
        if rebuilt is None:
            yield f"{where}: its calls make no row"
            continue
        if row.completion != rebuilt.completion:
            offset = _first_difference(row.completion, rebuilt.completion)
            lengths = f"{len(row.completion)} ids, its calls make {len(rebuilt.completion)}"
            yield f"{where}: completion differs from its calls at offset {offset} ({lengths})"
        if row.cut != rebuilt.cut:
            yield f"{where}: {row.cut} sampled ids are said to be cut, its budget cuts {rebuilt.cut}"
        if [span for span in row.spans if span.end > span.start] != rebuilt.spans:
            yield f"{where}: its spans are not those of its calls"


def mask_faults(evidence: Evidence) -> Iterator[str]:
    """The loss mask is 1 exactly on sampled ids."""
    for row, rebuilt in rebuilt_rows(evidence):
        if rebuilt is None or len(row.mask) != len(row.completion):
            yield f"rollout {row.rollout}: {len(row.mask)} mask bits for {len(row.completion)} ids, or no calls"
            continue
        due = due_mask(evidence, row, rebuilt)
        if row.mask != due:
            offset = _first_difference(row.mask, due)
            what = "an id is trained that was not sampled" if sum(row.mask) > sum(due) else "a sampled id is untrained"
            yield f"rollout {row.rollout}, offset {offset}: {what}"


def due_mask(evidence: Evidence, row: Row, rebuilt: Rebuilt) -> list[int]:
    """Return the loss mask that a row has to have: nothing of it where rollouts that were cut off are left out."""
    left_out = evidence.header.objective.mask_truncated and not _ended(row, evidence.header.end_ids)
    return [0] * len(rebuilt.mask) if left_out else rebuilt.mask


def sampled_faults(evidence: Evidence) -> Iterator[str]:
    """All sampled ids are trained or recorded as cut, and every turn ended where it says."""
    last = max((call.generation for calls in evidence.calls.values() for call in calls), default=0)
    for rollout, calls in sorted(evidence.calls.items()):
        row = evidence.rows.get(rollout)
        if row is None:
            if evidence.completed or calls[0].generation != last:
                yield f"rollout {rollout}: sampled, but in no row"
            continue
        sampled, used = sum(len(call.sampled) for call in calls), sum(row.mask) + row.cut
        if sampled != used and not evidence.header.objective.mask_truncated:
            yield f"rollout {rollout}: {sampled} ids sampled, {used} trained or cut"
        for call in calls:
            if (call.generation, call.group) != (row.generation, row.group):
                yield f"rollout {rollout}, turn {call.turn}: of another generation or group than its row"
            ends = [position for position, token in enumerate(call.sampled) if token in evidence.header.end_ids]
            stop = "end" if ends == [len(call.sampled) - 1] else "" if ends else "length"
            if stop != call.stop or (stop == "length" and len(call.sampled) != call.sampling.max_new_tokens):
                yield f"rollout {rollout}, turn {call.turn}: stopped by {call.stop!r} after {len(call.sampled)} ids"


def logprob_faults(evidence: Evidence) -> Iterator[str]:
    """Log-probabilities are finite, at most 0, and one for every id."""
    for calls in evidence.calls.values():
        for call in calls:
            yield from _scores(f"rollout {call.rollout}, turn {call.turn}", call.logprobs, len(call.sampled))
    for step, passes in evidence.passes.items():
        for made in passes:
            row = evidence.rows.get(made.rollout)
            if row is not None:
                yield from _scores(f"step {step}, rollout {made.rollout}", made.logprobs, len(row.completion))
    for row in evidence.rows.values():
        for name, scores in (("old", row.old_logprobs), ("reference", row.reference_logprobs)):
            if scores is not None:
                yield from _scores(f"rollout {row.rollout}, {name}", scores, len(row.completion))


def _scores(where: str, logprobs: Sequence[float], due: int) -> Iterator[str]:
    if len(logprobs) != due:
        yield f"{where}: {len(logprobs)} log-probabilities for {due} ids"
    wrong = [value for value in logprobs if not math.isfinite(value) or value > ROUNDING]
    if wrong:
        yield f"{where}: {wrong[0]} is no log-probability"


def group_faults(evidence: Evidence) -> Iterator[str]:
    """Every group is whole: as many rows as configured, of one task, one prompt and one generation."""
    size = evidence.header.objective.group_size
    for number, rows in evidence.groups().items():
        tasks = {evidence.episodes[row.rollout].task_id for row in rows if row.rollout in evidence.episodes}
        if len(rows) != size:
            yield f"group {number}: {len(rows)} rows of {size}"
        if len(tasks) != 1:
            yield f"group {number}: its tasks are {', '.join(sorted(tasks)) or 'not recorded'}"
        if any(row.prompt != rows[0].prompt for row in rows):
            yield f"group {number}: its rows have different prompts"
        if len({row.generation for row in rows}) != 1:
            yield f"group {number}: its rows are of different generations"


def task_faults(evidence: Evidence) -> Iterator[str]:
    """Tasks were consumed in the order of the frozen pool."""
    config = evidence.config
    order = _task_order(config)
    for number, rows in evidence.groups().items():
        episode = evidence.episodes.get(rows[0].rollout)
        due = next(order, None)
        if episode is not None and episode.task_id != due:
            yield f"group {number}: trained on {episode.task_id}, the pool has {due}"
        if rows[0].generation != number // config.groups_per_batch:
            yield f"group {number}: trained in generation {rows[0].generation}"


def _task_order(config: TrainingConfig) -> Iterator[str]:
    """Yield the pool's tasks as they are due: whole batches, again and again, each time in its own permutation."""
    whole = len(config.tasks) - len(config.tasks) % config.groups_per_batch
    for epoch in range(config.steps if config.repeat_pool else 1):
        order = list(range(len(config.tasks)))
        if config.shuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(config.seed + epoch)).tolist()
        yield from (config.tasks[index] for index in order[:whole])


def _ended(row: Row, end_ids: Sequence[int]) -> bool:
    return bool(row.completion) and row.completion[-1] in end_ids


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
