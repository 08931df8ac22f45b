"""The audit's rules of chance and order, on records made by hand: independent siblings, and the dataset's rows."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from gymqual.harness.plugin.registry import explain
from gymqual.qualification.support.training.refusals import outcome
from gymqual.trainer.audit.data_order import Pool
from gymqual.trainer.audit.independence import RandomStates, Siblings

pytestmark = pytest.mark.self_test


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
