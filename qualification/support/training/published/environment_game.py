"""The game 2048: every rollout has a board of its own, that starts anywhere.

Written anew after ``examples/scripts/grpo_2048.py`` of huggingface/trl (Apache-2.0), with its structure: one tool to
move, a reset that returns the first board, LoRA, gradient accumulation, the game's score as reward.

    python environment_game.py --model_name_or_path DIR --output_dir DIR --max_steps 100
"""

# pyright: reportPrivateImportUsage=false

import random
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

PROMPT = "Play 2048. Use the tool `move` with one of: up, down, left, right.\n"
SIZE = 4


def merged(line: list[int]) -> tuple[list[int], int]:
    """Return a line pushed to its beginning, and what its merged tiles are worth."""
    tiles, made, gained = [tile for tile in line if tile], [], 0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
            gained += tile
        made.append(tile)
    return made + [0] * (SIZE - len(made)), gained


class Game2048Env:
    """One board."""

    def reset(self, **_: Any) -> str:
        """Begin anew; what is returned follows the prompt."""
        self.board = [[0] * SIZE for _ in range(SIZE)]
        self.score = 0.0
        self.done = False
        self._spawn()
        self._spawn()
        return self._shown()

    def move(self, direction: str) -> str:
        """
        Play one move in 2048.

        Args:
            direction: One of "up", "down", "left", "right".

        Returns:
            Environment feedback after the move.
        """
        if self.done:
            raise ValueError("Game over.")
        before, gained = self.board, 0
        direction = direction.strip().lower()
        if direction in ("up", "down", "left", "right"):
            self.board, gained = self._pushed(self.board, direction)
        if self.board != before:
            self.score += gained
            self._spawn()
        self.done = all(self._pushed(self.board, each)[0] == self.board for each in ("up", "down", "left", "right"))
        return self._shown()

    @staticmethod
    def _pushed(board: list[list[int]], direction: str) -> tuple[list[list[int]], int]:
        turned = [list(column) for column in zip(*board, strict=True)] if direction in ("up", "down") else board
        step = -1 if direction in ("down", "right") else 1
        lines, gains = zip(*(merged(line[::step]) for line in turned), strict=True)
        lines = [line[::step] for line in lines]
        if direction in ("up", "down"):
            lines = [list(row) for row in zip(*lines, strict=True)]
        return lines, sum(gains)

    def _spawn(self) -> None:
        empty = [(row, column) for row in range(SIZE) for column in range(SIZE) if not self.board[row][column]]
        row, column = random.choice(empty)
        self.board[row][column] = 4 if random.random() < 0.1 else 2

    def _shown(self) -> str:
        rows = "\n".join(" ".join(map(str, row)) for row in self.board)
        return f"score={self.score}\n{rows}\ndone={self.done}"


def reward_score(environments: list[Game2048Env], **_: Any) -> list[float | None]:
    """What the game says."""
    return [environment.score for environment in environments]


def main() -> None:
    """Train by what the command line says."""
    parser = TrlParser((GRPOConfig, ModelConfig))  # type: ignore[arg-type]
    training_args, model_args = parser.parse_args_and_config()
    training_args.chat_template_kwargs = {"enable_thinking": False}
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": PROMPT}]] * 1000}),
        reward_funcs=reward_score,
        args=training_args,
        environment_factory=Game2048Env,
        peft_config=LoraConfig(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
