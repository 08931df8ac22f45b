"""Two environments in one run, each with its own tool, chosen by a column of the data set.

Written anew after the section "Multiple environments" of ``docs/source/grpo_trainer.md`` of huggingface/trl
(Apache-2.0). A rollout is scored by its own environment; the other one's reward is none.

    python environments_by_name.py --model_name_or_path DIR --output_dir DIR --max_steps 100
"""

# pyright: reportPrivateImportUsage=false

from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

WORDS = ("SAND", "LAND", "HAND", "BAND")


class CounterEnv:
    """A counter that should be brought to ten."""

    def reset(self, **_: Any) -> str:
        """Begin anew; what is returned becomes the prompt."""
        self.counter = 0
        return "Increment the counter to 10."

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


class WordEnv:
    """A word to be guessed, the same for every rollout of a row."""

    def reset(self, word: str, **_: Any) -> str:
        """Begin anew; what is returned becomes the prompt."""
        self.word = word
        self.right = 0
        return "Guess the word of 4 letters."

    def guess(self, word: str) -> str:
        """
        Guess the word.

        Args:
            word: The guessed word.

        Returns:
            For every letter G if it stands where it should, else X.
        """
        marks = "".join("G" if own == given else "X" for own, given in zip(self.word, word, strict=False))
        self.right = max(self.right, marks.count("G"))
        return marks


def counter_reward(environments: list[Any], **_: Any) -> list[float | None]:
    """How near the counter came; none where there is none."""
    return [-abs(10.0 - each.counter) if isinstance(each, CounterEnv) else None for each in environments]


def word_reward(environments: list[Any], **_: Any) -> list[float | None]:
    """How many letters were right at most; none where there is no word."""
    return [each.right / 4 if isinstance(each, WordEnv) else None for each in environments]


def main() -> None:
    """Train by what the command line says."""
    parser = TrlParser((GRPOConfig, ModelConfig))  # type: ignore[arg-type]
    training_args, model_args = parser.parse_args_and_config()
    training_args.chat_template_kwargs = {"enable_thinking": False}
    rows = [{"environment": name, "word": word} for word in WORDS * 25 for name in ("counter", "word")]
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[counter_reward, word_reward],
        args=training_args,
        environment_factory={"counter": CounterEnv, "word": WordEnv},
    )
    trainer.train()


if __name__ == "__main__":
    main()
