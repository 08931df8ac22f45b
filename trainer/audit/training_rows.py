"""Rebuilding trained rows from what was sampled, and what a row's rules are."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymqual.harness.records.trace import Episode, Row, Span
from gymqual.trainer.audit.sampling_recorder import Drawn
from gymqual.trainer.runs.errors import AuditError
from gymqual.trainer.runs.written import AS_WRITTEN

Turns = Sequence[Sequence[Drawn]]


def rebuild(
    prompt: Sequence[int], completion: Sequence[int], turns: Turns, budget: int, rollout: int
) -> tuple[list[Span], int]:
    """Return the spans of a completion by the recorded draws, and how many sampled ids a budget cut off.

    Every draw's context must be all that stands before it in the row, and every drawn id must follow there; only
    the last draw may have been cut, where the completion has used up its budget of ``budget`` ids. Raises
    AuditError.
    """
    ids = [*prompt, *completion]
    spans: list[Span] = []
    position, cut = len(prompt), 0
    for turn in turns:
        drawn = next((d for d in turn if not d.used and _continues(d, ids, position, budget + len(prompt))), None)
        if drawn is None:
            # A rollout that called no more tool has no further turn; what is left over is told by its ids.
            break
        drawn.used = True
        start = len(drawn.context)
        if start > position:
            spans.append(Span(source="external", start=position - len(prompt), end=start - len(prompt)))
        end = min(start + len(drawn.sampled), len(ids))
        spans.append(Span(source="sampled", start=start - len(prompt), end=end - len(prompt)))
        cut = start + len(drawn.sampled) - end
        position = end
        if cut:
            break
    if position != len(ids) or not spans:
        offset = position - len(prompt)
        detail = "ids that were not sampled follow" if spans else "no recorded draw is this row's"
        raise AuditError("rows", detail, rollout=rollout, turn=sum(s.source == "sampled" for s in spans), offset=offset)
    return spans, cut


def _continues(drawn: Drawn, ids: Sequence[int], position: int, limit: int) -> bool:
    start, end = len(drawn.context), len(drawn.context) + len(drawn.sampled)
    if start < position or drawn.context != list(ids[:start]):
        return False
    rest = list(ids[start:end])
    whole = rest == drawn.sampled
    cut = len(ids) == limit and rest == drawn.sampled[: len(rest)]
    return whole or cut


def require_mask(mask: Sequence[int], spans: Sequence[Span], rollout: int) -> None:
    """Raise AuditError unless the mask is 1 exactly on the sampled spans."""
    due = [0] * len(mask)
    for span in spans:
        if span.source == "sampled":
            due[span.start : span.end] = [1] * (span.end - span.start)
    require_equal_masks(mask, due, rollout)


def require_equal_masks(mask: Sequence[int], due: Sequence[int], rollout: int) -> None:
    """Raise AuditError unless a mask is the one that is due, and 0 on whatever padding follows."""
    padded = [*due, *[0] * (len(mask) - len(due))]
    for offset, (given, wanted) in enumerate(zip(mask, padded, strict=True)):
        if given != wanted:
            detail = "a token is trained that was not sampled" if given else "a sampled token is not trained"
            raise AuditError("mask", detail, rollout=rollout, offset=offset)


def equal(one: Any, other: Any) -> bool:
    """Return whether two values of a dataset are the same; arrays and tensors compare by element, and have no truth."""
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):
        return type(one) is type(other) and one.shape == other.shape and bool((one == other).all())


def begins(prompt: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a prompt is the dataset's own, but for what follows in its last message."""
    last, own = prompt[-1], given[-1]
    same = list(prompt[:-1]) == list(given[:-1]) and last == {**own, "content": last["content"]}
    # Text, or blocks of which the dataset's own come first.
    return same and last["content"][: len(own["content"])] == own["content"]


def draws_of(row: Row, turns: Turns) -> Iterator[tuple[Drawn, int]]:
    """Yield the draws of a rebuilt row and where each begins in its completion."""
    starts = [span.start for span in row.spans if span.source == "sampled"]
    ids = [*row.prompt, *row.completion]
    taken: set[int] = set()
    for turn, start in zip(turns, starts, strict=False):
        place = len(row.prompt) + start
        kept = len(ids) - place
        for drawn in turn:
            same = drawn.context == ids[:place] and drawn.sampled[:kept] == ids[place : place + len(drawn.sampled)]
            if same and id(drawn) not in taken:
                taken.add(id(drawn))
                yield drawn, start
                break


def require_messages(row: Row, parsed: Sequence[Any], messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise AuditError unless the messages that are executed and judged are what the row's own ids say."""
    written = [message for message in messages if message["role"] == "assistant"]
    for turn, (own, shown) in enumerate(zip([each for each in parsed if each], written, strict=False)):
        calls = [_names_and_objects(message.get("tool_calls") or ()) for message in (own, shown)]
        if calls[0] != calls[1] or (own.get("content") or "") != (shown.get("content") or ""):
            detail = f"its ids say {str(own)[:200]}, executed and judged is {str(shown)[:200]}"
            raise AuditError("messages", detail, rollout=row.rollout, turn=turn)


def external(row: Row) -> list[int]:
    """Return the ids that the model saw and did not write."""
    spans = [span for span in row.spans if span.source == "external"]
    return [token for span in spans for token in row.completion[span.start : span.end]]


def require_shown(row: Row, text: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise AuditError if a tool's list, which TRL takes for blocks of content, is nowhere in what the model saw."""
    for message in messages:
        content = message.get("content")
        if message["role"] != "tool" or not isinstance(content, list):
            continue
        blocks = all(isinstance(block, dict) and "type" in block for block in content)
        if not blocks and not any(str(part) in text for part in _leaves(content)):
            detail = f"{message.get('name')} returned {str(content)[:100]}, of which the chat template shows nothing"
            raise AuditError("observation", detail, rollout=row.rollout)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _names_and_objects(calls: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    functions = [call.get("function", {}) for call in calls]
    # What is no object may be carried on under another form.
    return [
        (f.get("name"), a if isinstance(a := f.get("arguments"), dict) and AS_WRITTEN not in a else None)
        for f in functions
    ]


def require_episode(episode: Episode, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise AuditError unless the environment's episode is the one that the trainer's messages show.

    Calls must stand in the order in which the model wrote them, each with the observation that the model saw, and
    the answer must be the last message.
    """
    calls = [call["function"] for m in messages if m["role"] == "assistant" for call in m.get("tool_calls") or ()]
    shown = [message["content"] for message in messages if message["role"] == "tool"]
    # The last turn's calls are not carried out where a budget of rounds has ended the rollout.
    written = [(call["name"], _text(call["arguments"])) for call in calls[: len(shown)]]
    received = [(use.tool, use.arguments) for use in episode.calls[: len(shown)]]
    for number, (wrote, got) in enumerate(zip(written, received, strict=False)):
        if wrote != got:
            detail = f"the model wrote {wrote}, its environment received {got}"
            raise AuditError("episode", detail, rollout=episode.rollout, turn=number)
    texts = [use.text for use in episode.calls[: len(shown)]]
    if texts != shown or len(written) != len(received):
        detail = f"the model saw {shown}, its environment showed {texts}"
        raise AuditError("episode", detail, rollout=episode.rollout)
    last = messages[-1]
    answered = last["role"] == "assistant" and not last.get("tool_calls")
    said = last.get("content") if answered else None
    if episode.answer != said:
        raise AuditError("episode", f"judged by {episode.answer!r}, it said {said!r}", rollout=episode.rollout)


def _text(arguments: Any) -> str:
    if isinstance(arguments, dict):
        arguments = arguments.get(AS_WRITTEN, arguments)
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
