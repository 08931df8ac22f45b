"""Trainings that must have come to the same: where they part, with the ids on both sides."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from gymqual.harness.records.divergence import Parting, differing_field, first_difference
from gymqual.harness.records.trace import TRACE, Call, Row
from gymqual.harness.report.rollouts import tokens
from gymqual.harness.report.training import Training

AROUND = 12
"""Ids shown before the first difference, and after it."""


def agreements(trainings: Iterable[Training]) -> Iterator[dict[str, Any]]:
    """Yield every completed training beside the first one of equal configuration, policy and task core."""
    alike: dict[str, list[Training]] = defaultdict(list)
    for each in trainings:
        if each.completed:
            alike[each.alike].append(each)
    for first, *others in alike.values():
        for other in others:
            yield agreement(first, other)


def agreement(left: Training, right: Training) -> dict[str, Any]:
    """Return whether two trainings left the same trace, and else where they part."""
    parting = first_difference(left.folder / TRACE, right.folder / TRACE)
    calls = [call for calls in left.seen.calls.values() for call in calls]
    return {
        "left": left.name,
        "right": right.name,
        "kind": "parity" if left.run.gym.gym != right.run.gym.gym else "same gym",
        "calls": len(calls),
        "tokens": sum(len(call.sampled) for call in calls),
        "parting": str(parting) if parting else "",
        "aligned": _aligned(parting, left, right) if parting else None,
    }


def _aligned(parting: Parting, left: Training, right: Training) -> dict[str, Any] | None:
    """Return the ids around the first difference, one column a place; None where the records hold no ids there."""
    if not isinstance(parting.left, Call | Row) or type(parting.left) is not type(parting.right):
        return None
    assert parting.right is not None
    name, place = differing_field(parting.left, parting.right)
    if place is None or name not in ("context", "sampled", "prompt", "completion"):
        return None
    pair = [getattr(parting.left, name), getattr(parting.right, name)]
    texts = [tokens(each.seen) for each in (left, right)]
    start = max(0, place - AROUND)
    columns = []
    for number, ids in enumerate(zip_longest(*(row[start : place + AROUND + 1] for row in pair)), start=start):
        cells = [
            None if token is None else {"id": token, "text": texts[side].get(str(token), str(token))}
            for side, token in enumerate(ids)
        ]
        columns.append({"place": number, "left": cells[0], "right": cells[1], "differs": ids[0] != ids[1]})
    return {"field": name, "rollout": parting.left.rollout, "columns": columns}
