"""The audit's rules of the loss, in both directions, on records made by hand: its rows, its weights, its gradient."""

import math
from collections.abc import Sequence

import pytest
import torch

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.trace import Objective, Oracle, Row
from gymqual.qualification.support.training.refusals import outcome
from gymqual.trainer.audit import grpo_oracle
from gymqual.trainer.audit.grpo_oracle import TrainedRow
from gymqual.trainer.audit.loss_audit import LossAudit
from gymqual.trainer.runs.errors import Findings

pytestmark = pytest.mark.self_test


PLAIN = Objective(
    loss_type="dapo", scale_rewards="group", beta=0.0, epsilon_low=0.2, epsilon_high=0.2, delta=None,
    importance_sampling_level="token", num_iterations=1, steps_per_generation=2, gradient_accumulation=2,
    group_size=2, max_completion_tokens=10, mask_truncated=False, reward_weights={"reward": 1.0},
)  # fmt: skip


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
