"""Plain TRL, to measure and to compare with: the same training, whose rollouts TRL's own code samples alone."""

from typing import Any

from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.trainer.grpo.trainer import GymTrainer


class PlainTRL(GymTrainer):
    """A training in which nothing stands around a generation batch."""

    def _generate(self, prompts: list[Any]) -> Any:
        return GRPOTrainer._generate(self, prompts)
