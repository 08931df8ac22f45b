"""Defects of the audit: each leaves out one rule, as audits elsewhere do."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gymqual.harness.records.trace import Oracle, Span
from gymqual.trainer.audit import grpo_oracle, rollout_audit, training_rows
from gymqual.trainer.audit.data_order import Pool
from gymqual.trainer.audit.independence import Siblings
from gymqual.trainer.audit.loss_audit import LossAudit
from gymqual.trainer.audit.optimizer_oracle import OptimizerOracle
from gymqual.trainer.audit.sampling_recorder import SamplerRecorder
from gymqual.trainer.runs.errors import AuditError

_rebuild, _record = training_rows.rebuild, SamplerRecorder.__call__


def masks_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The mask is the trainer's own."""
    patch.setattr(training_rows, "require_equal_masks", lambda mask, due, rollout: None)


def rows_are_matched_by_length(patch: pytest.MonkeyPatch) -> None:
    """A row that cannot be rebuilt is taken for some rollout's."""

    def rebuild(prompt: Sequence[int], completion: Sequence[int], turns: training_rows.Turns, *others: Any) -> Any:
        try:
            return _rebuild(prompt, completion, turns, *others)
        except AuditError:
            for drawn in (each for turn in turns for each in turn):
                drawn.used = True
            return [Span(source="sampled", start=0, end=len(completion))], 0

    patch.setattr(training_rows, "rebuild", rebuild)


def episodes_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Ids, messages and environments are believed to belong together."""
    patch.setattr(training_rows, "require_episode", lambda episode, messages: None)
    patch.setattr(training_rows, "require_messages", lambda row, parsed, messages: None)


def advantages_are_believed(patch: pytest.MonkeyPatch) -> None:
    """What is given is not held to what is computed again."""
    patch.setattr(rollout_audit, "_require_reward", lambda *arguments: None)


def the_oracle_agrees_with_all(patch: pytest.MonkeyPatch) -> None:
    """The usual evidence: there is a gradient."""
    agreed = Oracle(cosine=1.0, norm_ratio=1.0, trainer_norm=1.0, oracle_norm=1.0)
    patch.setattr(grpo_oracle, "compare", lambda trainers, oracles: agreed)


def the_mean_is_compared(patch: pytest.MonkeyPatch) -> None:
    """Sampler and loss are compared in the mean, where single tokens vanish."""
    patch.setattr(LossAudit, "_require_agreement", lambda self, row, made: None)


def the_recorder_draws_too(patch: pytest.MonkeyPatch) -> None:
    """A recorder that uses the trainer's random numbers."""

    def record(self: SamplerRecorder, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return _record(self, input_ids, scores)

    patch.setattr(SamplerRecorder, "__call__", record)


def draws_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Siblings may all be the same."""
    patch.setattr(Siblings, "add", lambda self, rollouts: None)


def updates_are_believed(patch: pytest.MonkeyPatch) -> None:
    """What the optimizer makes of a gradient is its own affair."""
    patch.setattr(OptimizerOracle, "after", lambda self, named: None)


def the_pool_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Any task of any split will do."""
    patch.setattr(Pool, "require_task", lambda self, task, group, rollout: None)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        masks_are_not_compared,
        rows_are_matched_by_length,
        episodes_are_not_compared,
        advantages_are_believed,
        the_oracle_agrees_with_all,
        the_mean_is_compared,
        the_recorder_draws_too,
        draws_are_believed,
        updates_are_believed,
        the_pool_is_not_compared,
    )
}
