"""Episodes: what every call showed and what every rollout was worth, judged by the second verifier."""

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from gymqual.gyms.german.tasks import UnknownTask, find_task
from gymqual.harness.records.legend import read_legend
from gymqual.harness.records.trace import Episode, Row, ToolUse
from gymqual.trainer.replay.evidence import Evidence
from gymqual.trainer.replay.reference_verifier import Judgement, judge
from gymqual.trainer.runs.config import Shaping


def judged(episode: Episode) -> Judgement:
    """Judge a recorded episode again."""
    calls = tuple((use.tool, use.arguments) for use in episode.calls)
    return _judged(episode.task_id, calls, episode.answer, episode.truncated)


_judged = cache(judge)


def shaped(judgement: Judgement, shaping: Shaping) -> float:
    """Return the reward that is trained on: a weighted sum of strict success and milestones."""
    earned = {**judgement.parts, "strict": float(judgement.strict)}
    return math.fsum(weight * earned[name] for name, weight in shaping)


def observation_faults(evidence: Evidence) -> Iterator[str]:
    """Every call showed what the task shows."""
    for rollout, episode in sorted(evidence.episodes.items()):
        for number, (use, due) in enumerate(zip(episode.calls, judged(episode).observations, strict=True)):
            if (use.text, use.is_error) != due:
                yield f"rollout {rollout}, call {number}: showed {use.text[:60]!r}, the task shows {due[0][:60]!r}"


def verdict_faults(evidence: Evidence) -> Iterator[str]:
    """Every verdict follows from task, calls, answer and whether a budget ended the rollout."""
    for rollout, episode in sorted(evidence.episodes.items()):
        try:
            due = judged(episode)
        except UnknownTask as error:
            yield f"rollout {rollout}: {error}"
            continue
        for name in ("reward", "strict", "parts", "outcome"):
            if getattr(episode, name) != getattr(due, name):
                yield f"rollout {rollout}: {name} is {getattr(episode, name)}, {getattr(due, name)} follows"
        row = evidence.rows.get(rollout)
        if row is not None and row.completion and episode.truncated == (row.completion[-1] in evidence.header.end_ids):
            yield f"rollout {rollout}: truncated is {episode.truncated}, its last id says otherwise"
        if episode.replay != "local core":
            yield f"rollout {rollout}: its verdict was held against nothing ({episode.replay})"


def reward_faults(evidence: Evidence) -> Iterator[str]:
    """The reward columns are strict success and its shaping by training.json."""
    for rollout, row in sorted(evidence.rows.items()):
        if rollout not in evidence.episodes:
            yield f"rollout {rollout}: a row without an episode"
            continue
        due = judged(evidence.episodes[rollout])
        columns = {"strict": float(due.strict), "shaped": shaped(due, evidence.config.shaping)}
        if row.rewards.keys() != columns.keys():
            yield f"rollout {rollout}: its reward columns are {sorted(row.rewards)}"
            continue
        for name, value in columns.items():
            given = row.rewards[name]
            if given is None or not math.isclose(given, value, rel_tol=1e-6, abs_tol=1e-7):
                yield f"rollout {rollout}: {name} reward {given}, {value} follows"


def transcript_faults(evidence: Evidence, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Question, calls, observations and answer of every episode stand in the ids of its row, in order."""
    for rollout, row in sorted(evidence.rows.items()):
        episode = evidence.episodes.get(rollout)
        if episode is None:
            continue
        question = find_task(episode.task_id).question
        if question not in _text(tokenizer, row.prompt):
            yield f"rollout {rollout}: its prompt does not ask {question!r}"
        for fault in _turn_faults(row, episode, tokenizer):
            yield f"rollout {rollout}, {fault}"


def legend_faults(evidence: Evidence, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The legend, where there is one, spells every id as the tokenizer does and names every task's family."""
    legend = read_legend(evidence.folder)
    if legend is None:
        return
    calls = (call for calls in evidence.calls.values() for call in calls)
    ids = {token for call in calls for token in (*call.context, *call.sampled)}
    ids |= {token for row in evidence.rows.values() for token in (*row.prompt, *row.completion)}
    for token in sorted(ids ^ legend.tokens.keys()):
        yield f"id {token} is {'missing' if token in ids else 'in no record'}"
    for token in sorted(ids & legend.tokens.keys()):
        shown, due = legend.tokens[token], _text(tokenizer, [token])
        # Of a part of a character the tokenizer gives no text: the rows tell whether its bytes are right.
        part = "\ufffd" in due
        if isinstance(shown, str) == part or (isinstance(shown, str) and shown.strip(" ") != due.strip(" ")):
            yield f"id {token} reads {shown!r}, the tokenizer says {due!r}"
    for rollout, row in sorted(evidence.rows.items()):
        ids = row.prompt + row.completion
        spelt = b"".join(map(legend.bytes_of, ids)).decode("utf-8", "replace")
        # SentencePiece leaves out the blank before a text.
        if spelt.lstrip(" ") != _text(tokenizer, ids).lstrip(" "):
            yield f"rollout {rollout} reads {spelt[:60]!r}"
    tasks = {episode.task_id for episode in evidence.episodes.values()}
    if legend.families != {task: find_task(task).formula.name for task in tasks}:
        yield "the families are not those of the tasks"


def _turn_faults(row: Row, episode: Episode, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    uses = list(enumerate(episode.calls))
    wrote = ""
    for span in row.spans:
        text = _text(tokenizer, row.completion[span.start : span.end])
        if span.source == "sampled":
            wrote = text
            continue
        found, position = 0, 0
        while uses and (place := _shown(uses[0][1].text).search(text, position)):
            number, use = uses.pop(0)
            found, position = found + 1, place.end()
            if not _wrote(use, wrote):
                yield f"call {number}: the turn before it did not write {use.tool}({use.arguments[:60]})"
        if not found:
            due = repr(uses[0][1].text[:60]) if uses else "nothing"
            yield f"its observations: an external span shows {text[-80:]!r}, {due} is due"
    # A call whose answer did not fit the budget was carried out, but its answer never became part of the row.
    if uses and not (row.spans and row.spans[-1].source == "sampled" and _wrote(uses[0][1], wrote)):
        yield f"call {uses[0][0]}: its observation {uses[0][1].text[:60]!r} stands in no external span"
    if row.spans and not _says(tokenizer, row, episode.answer):
        yield f"answer: {(episode.answer or 'none')[:60]!r} is not what its last turn says"


def _shown(text: str) -> re.Pattern[str]:
    """Return a pattern of an observation that is not a part of a longer one."""
    return re.compile(rf"(?<![\w,/-]){re.escape(text)}(?![\w,/])")


def _says(tokenizer: Any, row: Row, answer: str | None) -> bool:
    """Whether a row's last turn says this and no more, but for reasoning and calls, which special tokens set apart."""
    last = row.spans[-1]
    said = _text(tokenizer, row.completion[last.start : last.end]) if last.source == "sampled" else ""
    special = re.compile("|".join(map(re.escape, tokenizer.get_added_vocab())))
    # A parser keeps some of these tokens in what it takes for the answer, and drops others.
    parts = special.split(said.removesuffix(str(tokenizer.eos_token)))
    if answer is None:
        return not said or len(parts) > 1 or "{" in said
    wanted = special.sub("", answer).strip()
    stretches = (parts[start:end] for start in range(len(parts)) for end in range(start + 1, len(parts) + 1))
    return any("".join(stretch).strip() == wanted for stretch in stretches)


def _text(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert isinstance(text, str)
    return text


def _objects(text: str) -> list[Any]:
    """Return every JSON object that a text holds, inner ones included."""
    decoder, found = json.JSONDecoder(), []
    for position, character in enumerate(text):
        if character == "{":
            try:
                found.append(decoder.raw_decode(text, position)[0])
            except ValueError:
                continue
    return found


def _wrote(use: ToolUse, text: str) -> bool:
    """Whether a turn wrote this call: as a JSON object, or else its very text."""
    try:
        value = json.loads(use.arguments)
    except ValueError:
        value = None
    objects = _objects(text)
    named = any(each.get("name") == use.tool and each.get("arguments") in (value, use.arguments) for each in objects)
    return named or (use.tool in text and (value in objects or use.arguments in text))
