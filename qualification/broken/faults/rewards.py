"""Bugs of rewards and advantages."""

from dataclasses import replace
from typing import Any

import torch

from gymqual.gyms.base import Verdict
from gymqual.gyms.local import LocalGym, LocalSession
from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.trainer.grpo.rewards import shaped
from gymqual.trainer.grpo.trainer import GymTrainer


class _Rewards(GymTrainer):
    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        return self._changed(super()._calculate_rewards(*arguments, **named))


@fault("AUDIT-04", "reward", resembles="NVIDIA-NeMo/RL #2305")
class RewardsPermuted(_Rewards):
    """The rewards of a group belong to other members."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        return values.sort(dim=0).values if (values.sort(dim=0).values != values).any() else values.flip(0)


@fault("AUDIT-04", "reward", resembles="PrimeIntellect-ai/verifiers #1864")
class RewardsOfTheBatchBefore(_Rewards):
    """Scoring lags behind: a batch is paid what the one before it earned."""

    _before: torch.Tensor | None = None

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        before, self._before = self._before, values
        return values if before is None else before


@fault("AUDIT-04", "finite", "reward", "advantage")
class RewardNotFinite(_Rewards):
    """A reward that overflowed."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        values[0] = float("inf")
        return values


class AbstainingGym(LocalGym):
    """A gym that gives no reward to every third rollout, as one whose judge could not tell."""

    _opened = 0

    def open(self, task_id: str) -> LocalSession:
        """Open an episode."""
        self._opened += 1
        return _Abstaining(self._tasks, task_id) if self._opened % 3 == 0 else super().open(task_id)


class _Abstaining(LocalSession):
    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        return replace(super().verify(answer, truncated), reward=None)


@fault("AUDIT-04", "reward", resembles="huggingface/trl #5902", gym=AbstainingGym)
class MissingRewardIsZero(GymTrainer):
    """A rollout for which the gym gives no reward is paid 0."""

    def _shaped(self, environments: Any, **columns: Any) -> list[float | None]:
        return [shaped(self._shaping, verdict) or 0.0 for verdict in self.verdicts]


class _Advantages(GymTrainer):
    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        return {**output, "advantages": self._changed(output["advantages"])}


@fault("AUDIT-04", "advantage")
class AdvantagesNegated(_Advantages):
    """The sign is wrong."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        return -values


@fault("AUDIT-04", "advantage")
class NoBaseline(_Advantages):
    """The advantage is the reward: it learns faster than the healthy one, and is not what was configured."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tensor([float(verdict.strict) for verdict in self.verdicts])


@fault("AUDIT-04", "advantage", settings={"groups_per_step": 2})
class BaselineOfTheBatch(_Advantages):
    """The mean that is subtracted is the whole batch's: easy tasks are rewarded, hard ones punished."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        rewards = torch.tensor([float(verdict.strict) for verdict in self.verdicts])
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


@fault("AUDIT-04", "advantage", "gradient")
class AdvantagesSwapped(GymTrainer):
    """Advantages and rows part when the batch is shuffled."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        return {**inputs, "advantages": inputs["advantages"].sort().values.flip(0) * 0.5}
