"""Invariance: what a batch teaches does not depend on how it is split over processes and forward passes."""

from pathlib import Path

import pytest
import torch

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.trace import Header, Objective, Row, read_trace
from gymqual.qualification.support.training.invariance import (
    ACCUMULATIONS,
    Frozen,
    Gradients,
    adapted,
    apart,
    gradient,
    main,
    name_of,
    write_batch,
)
from gymqual.qualification.support.training.processes import PROCESSES
from gymqual.qualification.support.training.small_run import train_small
from gymqual.qualification.support.training.warm import run_warm
from gymqual.trainer.audit import grpo_oracle
from gymqual.trainer.audit.grpo_oracle import TrainedRow

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

REWARDS = (1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 0.25, 0.0)
PAID: list[float | None] = [*REWARDS]
SHORTER = 3
"""Ids by which each rollout is cut more than the one before, so that no two are padded alike."""
TOLERANCE = 1e-5
"""Norm of the difference over the norm, in fp32. Of it 5e-6 are padding: left of a prompt it moves the row."""
INVARIANT = ["dapo", pytest.param("grpo", marks=pytest.mark.slow), pytest.param("dr_grpo", marks=pytest.mark.slow)]
IN_ONE = [accumulation for accumulation in ACCUMULATIONS if accumulation > 1]
IN_TWO = [accumulation for accumulation in ACCUMULATIONS if len(REWARDS) % (PROCESSES * accumulation) == 0]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Objective, list[Row]]:
    """Two groups of four rollouts, of different lengths and paid differently."""
    folder = train_small(tmp_path_factory.mktemp("recorded") / "run", steps=1)
    records = list(read_trace(folder / "trace.jsonl"))
    made_of = next(record.objective for record in records if isinstance(record, Header))
    return made_of, [record for record in records if isinstance(record, Row)]


@pytest.fixture(scope="module")
def batch(recorded: tuple[Objective, list[Row]]) -> list[Frozen]:
    """The frozen batch."""
    ends = [len(row.completion) - SHORTER * number for number, row in enumerate(recorded[1])]
    return [
        Frozen(row.prompt, row.completion[:end], row.mask[:end], reward)
        for row, end, reward in zip(recorded[1], ends, REWARDS, strict=True)
    ]


@pytest.fixture(scope="module")
def in_two(batch: list[Frozen], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the gradients that two processes come to."""
    folder = tmp_path_factory.mktemp("gradients")
    write_batch(batch, folder / "batch.json")
    ended = run_warm(folder / "batch.json", folder, processes=PROCESSES, entry=main)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return folder


@pytest.mark.parametrize("loss_type", INVARIANT)
def test_accumulation_does_not_change_a_gradient(loss_type: str, batch: list[Frozen]) -> None:
    """A batch in 2, 4 or 8 forward passes MUST have the gradient that it has in one."""
    whole = gradient(batch, loss_type, 1)
    seen = {passes: apart(gradient(batch, loss_type, passes), whole) for passes in IN_ONE}
    assert max(seen.values()) <= TOLERANCE, explain(
        subject=f"relative difference of a gradient of {loss_type} by forward passes",
        expected=f"at most {TOLERANCE}",
        got=seen,
        cause="a pass is divided by its own tokens, or the passes are not divided by their number",
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_processes_do_not_change_a_gradient(loss_type: str, batch: list[Frozen], in_two: Path) -> None:
    """A batch in two processes, in 1, 2 or 4 passes each, MUST have the gradient that it has in one pass of one."""
    whole = gradient(batch, loss_type, 1)
    seen = {passes: apart(_loaded(in_two, loss_type, passes), whole) for passes in IN_TWO}
    assert max(seen.values()) <= TOLERANCE, explain(
        subject=f"relative difference of a gradient of {loss_type} by forward passes in each of two processes",
        expected=f"at most {TOLERANCE}",
        got=seen,
        cause="gradients are summed and not averaged, or divided by one process's tokens",
    )


@pytest.mark.slow
def test_bnpo_depends_on_how_a_batch_is_split(batch: list[Frozen], in_two: Path) -> None:
    """Upstream's bnpo divides each pass by its own tokens: its gradient MUST be seen to depend on the passes."""
    whole = gradient(batch, "bnpo", 1)
    seen = {(1, passes): apart(gradient(batch, "bnpo", passes), whole) for passes in (4, 8)}
    seen |= {(PROCESSES, passes): apart(_loaded(in_two, "bnpo", passes), whole) for passes in IN_TWO}
    assert min(seen.values()) > 1000 * TOLERANCE, explain(
        subject="relative difference of a gradient of bnpo by (processes, passes in each)",
        expected=f"more than {1000 * TOLERANCE}",
        got=seen,
        cause="upstream divides by the tokens of the whole batch now: say so where bnpo is said to be no invariant",
    )


def test_a_row_alone_is_the_row_in_its_batch(batch: list[Frozen], recorded: tuple[Objective, list[Row]]) -> None:
    """The gradients of rows by themselves, without padding, MUST add up to that of their batch."""
    whole = gradient(batch, "dapo", 1)
    made_of = recorded[0].model_copy(update={"group_size": 4, "steps_per_generation": 1, "gradient_accumulation": 1})
    advantages, tokens = grpo_oracle.advantages(PAID, made_of), sum(sum(row.mask) for row in batch)
    alone = [
        TrainedRow(_row(row, frozen, advantage), len(batch), tokens, tokens)
        for row, frozen, advantage in zip(recorded[1], batch, advantages, strict=True)
    ]
    again = grpo_oracle.gradient(adapted(), alone, made_of, 1.0, torch.enable_grad)
    difference = apart(again, whole)
    assert difference <= TOLERANCE, explain(
        subject="relative difference of the sum of rows' own gradients to their batch's",
        expected=f"at most {TOLERANCE}",
        got=difference,
        cause="padding is seen by the model, or rows of a batch see each other",
    )


def _row(row: Row, frozen: Frozen, advantage: float) -> Row:
    cut = {"completion": frozen.completion, "mask": frozen.mask, "advantage": advantage}
    return row.model_copy(update={**cut, "old_logprobs": None, "reference_logprobs": None})


def _loaded(folder: Path, loss_type: str, passes: int) -> Gradients:
    return torch.load(folder / name_of(loss_type, PROCESSES, passes), weights_only=True)
