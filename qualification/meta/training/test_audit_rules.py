"""The audit's rules one by one, at their bounds and in both directions, on records made by hand."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.trace import Episode, Objective, Oracle, Row, Span, ToolUse
from gymqual.trainer.audit import grpo_oracle, training_rows
from gymqual.trainer.audit.data_order import Pool
from gymqual.trainer.audit.grpo_oracle import TrainedRow
from gymqual.trainer.audit.independence import RandomStates, Siblings
from gymqual.trainer.audit.loss_audit import LossAudit
from gymqual.trainer.audit.sampling_recorder import Drawn
from gymqual.trainer.runs.errors import AuditError, Findings

pytestmark = pytest.mark.self_test


PLAIN = Objective(
    loss_type="dapo", scale_rewards="group", beta=0.0, epsilon_low=0.2, epsilon_high=0.2, delta=None,
    importance_sampling_level="token", num_iterations=1, steps_per_generation=2, gradient_accumulation=2,
    group_size=2, max_completion_tokens=10, mask_truncated=False, reward_weights={"reward": 1.0},
)  # fmt: skip


def outcome(rule: Callable[[], object]) -> object:
    """What a rule returns, or how it refuses: the rule's name and where."""
    try:
        return rule()
    except AuditError as error:
        return str(error).partition(":")[0]


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


# --- Rows of the loss --------------------------------------------------------------------------------


def sampled(rollout: int, prompt: Sequence[int], completion: Sequence[int], advantage: float) -> Row:
    return Row(
        generation=0, rollout=rollout, group=0, prompt=list(prompt), completion=list(completion), advantage=advantage,
        mask=[1] * len(completion), spans=[], cut=0, rewards={}, old_logprobs=None, reference_logprobs=None,
    )  # fmt: skip


BATCH = [
    sampled(0, [1, 2], [5, 6], 1.0),
    sampled(1, [1, 2], [5, 6, 7], -1.0),
    sampled(2, [1, 3], [5, 6], -0.5),
    sampled(3, [1, 1], [5, 6], -0.5),
    sampled(4, [1, 2], [8, 9], 0.25),
    sampled(5, [1, 2], [8, 9], -0.25),
]
IN_THE_LOSS: dict[str, tuple[list[int], list[int], float, list[int], object]] = {
    "a row": ([1, 2], [5, 6], 1.0, [1, 1, 0], 0),
    "the longer of two that begin alike": ([1, 2], [5, 6, 7], -1.0, [1, 1, 1], 1),
    "equal ids behind a prompt that sorts behind": ([1, 3], [5, 6], -0.5, [1, 1, 0], 2),
    "equal ids behind a prompt that sorts before": ([1, 1], [5, 6], -0.5, [1, 1, 0], 3),
    "one of two equal siblings": ([1, 2], [8, 9], 0.25, [1, 1, 0], 4),
    "the other": ([1, 2], [8, 9], -0.25, [1, 1, 0], 5),
    "the advantage of the other sign": ([1, 2], [5, 6], -1.0, [1, 1, 0], "advantage"),
    "an advantage a little too large": ([1, 2], [5, 6], 1.00001, [1, 1, 0], "advantage"),
    "an advantage a little too small": ([1, 2], [5, 6], 0.99999, [1, 1, 0], "advantage"),
    "no row's ids": ([1, 2], [5, 5], 1.0, [1, 1, 0], "rows"),
    "another prompt": ([2, 2], [5, 6], 1.0, [1, 1, 0], "rows"),
    "a mask with a bit less": ([1, 2], [5, 6], 1.0, [1, 0, 0], "mask"),
    "a mask with padding": ([1, 2], [5, 6], 1.0, [1, 1, 1], "mask"),
}


@pytest.mark.parametrize("name", IN_THE_LOSS)
def test_a_row_of_the_loss_is_the_one_that_was_sampled(name: str) -> None:
    """A row of the loss MUST be found by prompt, ids and advantage, with its very mask, or be refused."""
    prompt, completion, advantage, mask, due = IN_THE_LOSS[name]
    audit = object.__new__(LossAudit)
    audit._pending, audit._uses, audit.findings = BATCH, dict.fromkeys(range(len(BATCH)), 0), Findings(True)
    inputs = {
        "prompt_ids": torch.tensor([[0, *prompt]]), "prompt_mask": torch.tensor([[0, 1, 1]]),
        "completion_ids": torch.tensor([[*completion, 0, 0][:3]]), "completion_mask": torch.tensor([mask]),
        "advantages": torch.tensor([advantage]),
    }  # fmt: skip

    def rule() -> object:
        found = audit._match(inputs, 0)
        return found and found.rollout

    got = outcome(rule)
    assert got == due, explain(
        subject=f"a padded row of the loss with {name}",
        expected=due,
        got=got,
        cause="rows are told apart by less than all that tells them apart",
    )


USES: dict[str, tuple[list[int], int | None, object]] = {
    "every row once": ([1, 1, 1, 1], None, None),
    "a row left out": ([1, 1, 1, 0], None, "rows"),
    "a row twice": ([1, 1, 1, 2], None, "rows"),
    "every row once at the end": ([1, 1, 1, 1], 2, None),
    "a row left out at the end": ([1, 0, 1, 1], 2, "rows"),
    "half of a batch, and training ended": ([1, 0, 0, 1], 1, None),
    "less than half, and training ended": ([1, 0, 0, 0], 1, "rows"),
    "more than half, and training ended": ([1, 1, 0, 1], 1, "rows"),
    "a row twice, and training ended": ([2, 0, 0, 0], 1, "rows"),
}


@pytest.mark.parametrize("name", USES)
def test_every_row_of_a_batch_is_trained_once_or_training_ends_with_it(name: str) -> None:
    """Every row MUST be trained as often as configured, and of an unfinished batch as many as its passes have."""
    counts, steps, due = USES[name]
    audit = object.__new__(LossAudit)
    kind = PLAIN.model_copy(update={"gradient_accumulation": 1})
    audit.objective, audit._uses, audit.findings = kind, dict(enumerate(counts)), Findings(True)
    got = outcome(lambda: audit.require_all_used(steps))
    assert got == due, explain(
        subject=f"a batch of four rows in two passes, one an optimizer step: {name}",
        expected=due,
        got=got,
        cause="uses are counted in sum, or not at all where training ends",
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


# --- Independence ------------------------------------------------------------------------------------


def evidence_of(groups: int, ids: Sequence[tuple[int, ...]], logprob: float) -> object:
    """Draw groups in which the siblings are ``ids``, each with a log-probability."""
    siblings = Siblings(1e-6)

    def rule() -> object:
        for _ in range(groups):
            siblings.add([(each, logprob) for each in ids])
        return siblings.repeated

    return outcome(rule)


def test_siblings_that_repeat_otherwise_than_chance_are_stopped() -> None:
    """Repetitions that chance does not give MUST stop a run, and so MUST their absence; what it gives MUST NOT."""
    same, different = [(1,), (1,)], [(1,), (2,)]
    got = [
        evidence_of(200, same, -0.01),
        evidence_of(200, same, -5.0),
        evidence_of(200, different, -0.01),
        evidence_of(200, different, -5.0),
    ]
    due = [200, "siblings", "siblings", 0]
    assert got == due, explain(
        subject="200 groups of two: equal and likely, equal and unlikely, different where equal is likely, different",
        expected=due,
        got=got,
        cause="the bet is laid on one side, or does not know the odds",
    )


def test_the_odds_against_chance_are_those_of_the_bets() -> None:
    """After one repetition of chance one half the odds MUST be the mean of what the four bets come to."""
    siblings = Siblings(1e-6)
    siblings.add([((1,), -0.6931471805599453), ((1,), -0.6931471805599453)])
    due = sum(2.718281828459045**bet / (1 + 0.5 * (2.718281828459045**bet - 1)) for bet in (-4, -1, 1, 4)) / 4
    got = (round(2.718281828459045**siblings.evidence, 9), siblings.repeated, round(siblings.expected, 9))
    assert got == (round(due, 9), 1, 0.5), explain(
        subject="odds, repetitions, and how many were expected",
        expected=(round(due, 9), 1, 0.5),
        got=got,
        cause="the martingale is not the one whose odds are known",
    )


def test_random_numbers_belong_to_one_process_and_one_turn() -> None:
    """A state of the generator that comes twice MUST be refused, in one process and in two; states apart MUST NOT."""
    states = RandomStates()
    torch.manual_seed(1)
    got = [outcome(lambda: states.add(torch.device("cpu"))) for _ in range(2)]
    got += [outcome(lambda: RandomStates.require_apart([["a", "b"], ["c"], ["d", "b"]]))]
    got += [outcome(lambda: RandomStates.require_apart([["a", "b"], ["c"], []]))]
    due = [None, "random state", "random state", None]
    assert got == due, explain(
        subject="a new state, the same again, three processes with a common one, and three without",
        expected=due,
        got=got,
        cause="states are compared with the last one only, or within a process only",
    )


# --- The pool ----------------------------------------------------------------------------------------


def pool_of(length: int, **trainer: Any) -> Pool:
    """A pool of so many tasks, two groups of two rollouts a generation batch."""
    settings = {
        "train_dataset": Dataset.from_list([{"prompt": f"p{n}", "unused": n} for n in range(length)]),
        "args": SimpleNamespace(generation_batch_size=4, seed=43), "num_generations": 2, "shuffle_dataset": False,
        "accelerator": SimpleNamespace(num_processes=1, process_index=0), **trainer,
    }  # fmt: skip
    return Pool(SimpleNamespace(**settings), [f"t{n}" for n in range(length)])


def batch(*numbers: int) -> list[dict[str, str]]:
    return [{"prompt": f"p{number}"} for number in numbers]


DUE: dict[str, tuple[int, list[list[int]], object]] = {
    "in order": (5, [[0, 0, 1, 1], [2, 2, 3, 3]], None),
    "round again, in whole batches": (5, [[0, 0, 1, 1], [2, 2, 3, 3], [0, 0, 1, 1]], None),
    "the row that makes no whole batch": (5, [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 0, 0]], "data"),
    "a row skipped": (5, [[0, 0, 2, 2]], "data"),
    "a batch repeated": (5, [[0, 0, 1, 1], [0, 0, 1, 1]], "data"),
    "changed places": (5, [[1, 1, 0, 0]], "data"),
}


@pytest.mark.parametrize("name", DUE)
def test_rows_of_the_dataset_are_due_in_their_order(name: str) -> None:
    """Groups MUST be the dataset's rows in order, in whole batches, again and again."""
    length, batches, due = DUE[name]
    pool = pool_of(length)
    got = outcome(lambda: [pool.require_next(batch(*numbers), 2) for numbers in batches][:0] or None)
    assert got == due, explain(
        subject=f"a pool of {length} in batches of two groups: {name}",
        expected=due,
        got=got,
        cause="rows are asked for by content alone, or the order is not kept over batches",
    )


def test_a_shuffled_pool_has_the_order_of_its_seed() -> None:
    """A shuffled pool MUST have the permutations of one generator, or of one a pass where a trainer says so."""
    orders = {}
    for seeds_epochs in (False, True):
        generator = torch.Generator().manual_seed(43)
        first = torch.randperm(4, generator=generator).tolist()
        second = torch.randperm(4, generator=torch.Generator().manual_seed(44) if seeds_epochs else generator).tolist()
        pool = pool_of(4, shuffle_dataset=True, seeds_epochs=seeds_epochs)
        orders[seeds_epochs] = outcome(
            lambda pool=pool, order=first + second: (
                [pool.require_task(f"t{row}", group, 0) for group, row in enumerate(order)][:0] or "in order"
            )
        )
    assert orders == {False: "in order", True: "in order"}, explain(
        subject="two passes through a shuffled pool, by one generator and by one a pass",
        expected="in order",
        got=orders,
        cause="the generator is seeded where it should not be, or not where it should",
    )


# --- Loss and gradient -------------------------------------------------------------------------------


def row(mask: Sequence[int]) -> Row:
    return Row(
        generation=0, rollout=0, group=0, prompt=[1], completion=[2] * len(mask), mask=list(mask), spans=[], cut=0,
        rewards={"reward": 1.0}, advantage=1.0, old_logprobs=None, reference_logprobs=None,
    )  # fmt: skip


WEIGHTS: dict[str, tuple[list[int], int, int, int, float]] = {
    "dapo": ([1, 1, 0], 2, 5, 8, 8.0),
    "dapo, one token": ([1, 0, 0], 2, 1, 1, 1.0),
    "dapo, none": ([0, 0, 0], 2, 0, 0, 1.0),
    "grpo": ([1, 1, 0], 2, 5, 8, 2 * 2 * 2),
    "grpo, none": ([0, 0, 0], 2, 0, 0, 1 * 2 * 2),
    "bnpo": ([1, 1, 0], 2, 5, 8, 5 * 2),
    "bnpo, none": ([0, 0, 0], 2, 0, 0, 1 * 2),
    "dr_grpo": ([1, 1, 0], 3, 5, 8, 3 * 10 * 2),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_token_counts_what_the_loss_type_says(name: str) -> None:
    """A token's loss MUST be divided by what the loss type divides by, and by 1 where there is none."""
    mask, pass_rows, pass_tokens, tokens, divisor = WEIGHTS[name]
    kind = PLAIN.model_copy(update={"loss_type": name.partition(",")[0]})
    got = grpo_oracle.row_weight(TrainedRow(row(mask), pass_rows, pass_tokens, tokens), kind)
    assert got == pytest.approx(1.0 / divisor, rel=1e-12), explain(
        subject=f"weight of a token: {name}", expected=1.0 / divisor, got=got, cause="another normaliser"
    )


def _scaled(rewards: Sequence[float], by: Sequence[float]) -> list[float]:
    """Rewards less their mean, over the unbiased deviation of ``by`` and TRL's guard."""
    mean, of = sum(rewards) / len(rewards), sum(by) / len(by)
    spread = math.sqrt(sum((each - of) ** 2 for each in by) / (len(by) - 1))
    return [(each - mean) / (spread + 1e-4) for each in rewards]


ADVANTAGES: dict[str, tuple[list[float | None], list[float]]] = {
    "group": ([1.0, 0.0, 0.5, 0.25], [*_scaled([1.0, 0.0], [1.0, 0.0]), *_scaled([0.5, 0.25], [0.5, 0.25])]),
    "batch": (
        [1.0, 0.0, 0.5, 0.25],
        [*_scaled([1.0, 0.0], [1.0, 0.0, 0.5, 0.25]), *_scaled([0.5, 0.25], [1.0, 0.0, 0.5, 0.25])],
    ),
    "none": ([1.0, 0.0, 0.5, 0.25], [0.5, -0.5, 0.125, -0.125]),
    "group, equal rewards": ([0.3, 0.3, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]),
    "group, one without reward": ([1.0, None, 1.0, 0.0], [0.0, 0.0, *_scaled([1.0, 0.0], [1.0, 0.0])]),
    "batch, one without reward": ([1.0, None, 1.0, 0.0], [0.0, 0.0, *_scaled([1.0, 0.0], [1.0, 1.0, 0.0])]),
    "none, a group without any": ([None, None, 1.0, 0.0], [0.0, 0.0, 0.5, -0.5]),
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_is_the_distance_to_its_groups_mean(name: str) -> None:
    """An advantage MUST be the reward less its group's mean, over the configured deviation, 0 without reward."""
    rewards, due = ADVANTAGES[name]
    kind = PLAIN.model_copy(update={"scale_rewards": name.partition(",")[0]})
    got = grpo_oracle.advantages(rewards, kind)
    assert got == pytest.approx(due, rel=1e-9, abs=1e-12), explain(
        subject=f"advantages of two groups of two, scaled by {name}",
        expected=due,
        got=got,
        cause="another mean or deviation, or a missing reward counts as one",
    )


def test_gradients_are_as_far_apart_as_they_are() -> None:
    """The distance of two gradients MUST be the norm of their difference, of one that is zero the other's norm."""
    compared = [
        grpo_oracle.compare({"a": torch.tensor(one).double()}, {"a": torch.tensor(other).double()})
        for one, other in (([3.0, 0.0], [0.0, 4.0]), ([3.0, 4.0], [3.0, 4.0]), ([0.0, 0.0], [3.0, 4.0]))
    ]
    got = [round(grpo_oracle.distance(each), 12) for each in compared]
    got += [grpo_oracle.distance(Oracle(cosine=None, norm_ratio=None, trainer_norm=5.0, oracle_norm=12.0))]
    assert got == [5.0, 0.0, 5.0, 13.0], explain(
        subject="distances of two at right angles, two equal ones, zero and another, and two of no known angle",
        expected=[5.0, 0.0, 5.0, 13.0],
        got=got,
        cause="an angle that is not known is taken for none",
    )
