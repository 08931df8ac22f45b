"""The audit's rules of rows and episodes, at their bounds and in both directions, on records made by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.trace import Episode, Span, ToolUse
from gymqual.qualification.support.training.refusals import outcome
from gymqual.trainer.audit import training_rows
from gymqual.trainer.audit.sampling_recorder import Drawn

pytestmark = pytest.mark.self_test


# --- Rows from draws ---------------------------------------------------------------------------------

PROMPT = [1, 2]


def draw(context: Sequence[int], sampled: Sequence[int]) -> Drawn:
    return Drawn(list(context), list(sampled), [-1.0] * len(sampled))


FIRST, SECOND = ([1, 2], [5, 6]), ([1, 2, 5, 6, 8], [7, 9])
"""Two turns, between which the environment adds one id."""
SPANS = [("sampled", 0, 2), ("external", 2, 3), ("sampled", 3, 5)]
REBUILT: dict[str, tuple[list[int], list[tuple[list[int], list[int]]], int, object]] = {
    "two turns": ([5, 6, 8, 7, 9], [FIRST, SECOND], 9, (SPANS, 0)),
    "one turn": ([5, 6], [FIRST], 9, (SPANS[:1], 0)),
    "cut by the budget": ([5, 6, 8, 7], [FIRST, SECOND], 4, ([*SPANS[:2], ("sampled", 3, 4)], 1)),
    "cut, and the budget is not used up": ([5, 6, 8, 7], [FIRST, SECOND], 5, "rows"),
    "cut, and the budget is exceeded": ([5, 6, 8, 7], [FIRST, SECOND], 3, "rows"),
    "cut by the budget, and another id": ([5, 6, 8, 3], [FIRST, SECOND], 4, "rows"),
    "cut in the first turn": ([5], [FIRST, SECOND], 1, ([("sampled", 0, 1)], 1)),
    "another sampled id": ([5, 6, 8, 7, 3], [FIRST, SECOND], 9, "rows"),
    "another id of the environment": ([5, 6, 3, 7, 9], [FIRST, SECOND], 9, "rows"),
    "ids that follow": ([5, 6, 8, 7, 9, 4], [FIRST, SECOND], 9, "rows"),
    "ids of the environment alone follow": ([5, 6, 8], [FIRST, SECOND], 9, "rows"),
    "no draw": ([5, 6], [], 9, "rows"),
    "of another prompt": ([5, 6], [([1, 3], [5, 6])], 9, "rows"),
    "a turn that goes back": ([5, 6], [FIRST, ([1], [2])], 9, (SPANS[:1], 0)),
}


@pytest.mark.parametrize("name", REBUILT)
def test_a_row_is_rebuilt_from_its_draws_or_refused(name: str) -> None:
    """A row MUST be the draws in their contexts, cut only where the budget ends, and anything else MUST be refused."""
    completion, turns, budget, due = REBUILT[name]

    def rule() -> object:
        spans, cut = training_rows.rebuild(PROMPT, completion, [[draw(*turn)] for turn in turns], budget, 0)
        return [(span.source, span.start, span.end) for span in spans], cut

    got = outcome(rule)
    assert got == due, explain(
        subject=f"a row of two turns: {name}",
        expected=due,
        got=got,
        cause="contexts, ids or the budget are compared by length, or in one direction only",
    )


def test_siblings_take_a_draw_each() -> None:
    """Of equal draws each sibling MUST take one of its own, and a third that nobody drew MUST be refused."""
    turns = [[draw([1, 2], [4]), draw([1, 2], [5, 6]), draw([1, 2], [5, 6])]]
    got = [outcome(lambda: len(training_rows.rebuild(PROMPT, [5, 6], turns, 9, 0)[0])) for _ in range(3)]
    used = [each.used for each in turns[0]]
    assert (got, used) == ([1, 1, "rows"], [False, True, True]), explain(
        subject="three equal rows of which two were drawn; which draws were taken",
        expected=([1, 1, "rows"], [False, True, True]),
        got=(got, used),
        cause="a draw is taken twice, or before its ids were looked at",
    )


MASKS: dict[str, tuple[list[int], object]] = {
    "exact": ([1, 1, 0, 1, 1], None),
    "exact, and padding": ([1, 1, 0, 1, 1, 0, 0], None),
    "trains the environment": ([1, 1, 1, 1, 1], "mask"),
    "leaves out the first": ([0, 1, 0, 1, 1], "mask"),
    "leaves out the last": ([1, 1, 0, 1, 0], "mask"),
    "trains padding": ([1, 1, 0, 1, 1, 0, 1], "mask"),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_one_exactly_on_sampled_ids(name: str) -> None:
    """A mask MUST be 1 on every sampled id and 0 on all others, padding included."""
    mask, due = MASKS[name]
    spans = [Span(source=source, start=start, end=end) for source, start, end in SPANS]  # type: ignore[arg-type]
    got = outcome(lambda: training_rows.require_mask(mask, spans, 0))
    assert got == due, explain(
        subject=f"a mask that {name}", expected=due, got=got, cause="a mask is compared in part, or by its sum"
    )


# --- Episodes and messages ---------------------------------------------------------------------------

USE = ToolUse(tool="lookup", arguments='{"record_id":"L-1"}', text="m", is_error=False)


def episode(calls: Sequence[ToolUse], answer: str | None = "7") -> Episode:
    return Episode(
        rollout=0, task_id="v1/train/43/0", calls=list(calls), answer=answer, truncated=False, reward=1.0, strict=True,
        parts={}, outcome="solved", replay="local core",
    )  # fmt: skip


def messages(shown: Sequence[str], answer: str | None = "7", name: str = "lookup") -> list[dict[str, Any]]:
    call = {"function": {"name": name, "arguments": {"record_id": "L-1"}}}
    turns = [
        m for text in shown for m in ({"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": text})
    ]
    return [{"role": "user", "content": "x"}, *turns, *([{"role": "assistant", "content": answer}] if answer else [])]


SHOWN: dict[str, tuple[Episode, list[dict[str, Any]], object]] = {
    "the same": (episode([USE]), messages(["m"]), None),
    "a text that sorts before": (episode([USE]), messages(["a"]), "episode"),
    "a text that sorts behind": (episode([USE]), messages(["z"]), "episode"),
    "another tool": (episode([USE]), messages(["m"], name="calculator"), "episode"),
    "a call more": (episode([USE]), messages(["m", "m"]), "episode"),
    "a call that was not carried out": (episode([USE, USE]), messages(["m"]), None),
    "another answer": (episode([USE], "8"), messages(["m"]), "episode"),
    "no answer, and one is judged": (episode([USE]), messages(["m"], None), "episode"),
    "no answer": (episode([USE], None), messages(["m"], None), None),
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_episode_is_what_the_messages_show(name: str) -> None:
    """Calls, what they showed and the answer MUST be those of the messages, in order."""
    told, shown, due = SHOWN[name]
    got = outcome(lambda: training_rows.require_episode(told, shown))
    assert got == due, explain(
        subject=f"an episode beside its messages: {name}",
        expected=due,
        got=got,
        cause="calls or texts are counted, or compared in one direction only",
    )


VALUES: dict[str, tuple[object, object, bool]] = {
    "equal tensors": (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
    "a tensor with a greater element": (torch.tensor([1, 3]), torch.tensor([1, 2]), False),
    "a tensor with a smaller element": (torch.tensor([1, 1]), torch.tensor([1, 2]), False),
    "a longer tensor": (torch.tensor([1, 2, 3]), torch.tensor([1, 2]), False),
    "equal lists": ([1, "a"], [1, "a"], True),
    "other text": ("a", "b", False),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_dataset_are_compared_by_all_their_elements(name: str) -> None:
    """Two values MUST be the same only if every element is."""
    one, other, due = VALUES[name]
    got = training_rows.equal(one, other)
    assert got == due, explain(
        subject=f"two values: {name}", expected=due, got=got, cause="shapes, types or one direction are not compared"
    )


def test_a_prompt_is_its_datasets_but_for_what_the_environment_adds() -> None:
    """Only behind the dataset's own last message MAY a prompt say more."""
    given = [{"role": "system", "content": "s"}, {"role": "user", "content": "question"}]
    prompts = {
        "the same": ("s", "question"), "more behind": ("s", "question and more"), "more before": ("s", "a question"),
        "less": ("s", "quest"), "another first message": ("t", "question"),
    }  # fmt: skip
    got = {
        name: training_rows.begins([{**given[0], "content": first}, {**given[1], "content": last}], given)
        for name, (first, last) in prompts.items()
    }
    due = {name: name in ("the same", "more behind") for name in prompts}
    assert got == due, explain(
        subject="prompts that are the dataset's",
        expected=due,
        got=got,
        cause="any prompt of the right length or with the right end is taken",
    )
