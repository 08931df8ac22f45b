"""An environment that draws its own task and scores itself: there is neither a data set nor a reward function.

Written anew after the section "Environments" of ``docs/source/grpo_trainer.md`` of huggingface/trl (Apache-2.0).

    python environment_own_task.py --model_name_or_path DIR --output_dir DIR --max_steps 100
"""

# pyright: reportPrivateImportUsage=false

import random
from typing import Any

from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser


class IncrementEnv:
    """A counter and the number that it should be brought to."""

    def reset(self, **_: Any) -> str:
        """Draw a task; what is returned becomes the prompt."""
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        """What the episode is worth."""
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


def main() -> None:
    """Train by what the command line says."""
    parser = TrlParser((GRPOConfig, ModelConfig))  # type: ignore[arg-type]
    training_args, model_args = parser.parse_args_and_config()
    training_args.chat_template_kwargs = {"enable_thinking": False}
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        environment_factory=IncrementEnv,
    )
    trainer.train()


if __name__ == "__main__":
    main()
