"""Two stateless tools, one of them asynchronous.

Written anew after the section "Tools" of ``docs/source/grpo_trainer.md`` of huggingface/trl (Apache-2.0), which shows
the two tools; questions and reward are made up here.

    python documented_tools.py --model_name_or_path DIR --output_dir DIR --max_steps 100
"""

# pyright: reportPrivateImportUsage=false

from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b


def result_reward(completions: list[Any], result: list[int], **_: Any) -> list[float | None]:
    """The result must stand in the last message; a call is worth a little by itself."""
    return [
        float(str(wanted) in (completion[-1].get("content") or ""))
        + 0.1 * sum(turn["role"] == "tool" for turn in completion)
        for completion, wanted in zip(completions, result, strict=True)
    ]


def examples() -> list[dict[str, Any]]:
    """Return prompts and their results."""
    return [
        {"prompt": [{"role": "user", "content": f"What is {a} * {b} + {c}?"}], "a": a, "b": b, "c": c}
        | {"result": a * b + c}
        for a in range(2, 8)
        for b in range(2, 6)
        for c in (3, 7)
    ]


def main() -> None:
    """Train by what the command line says."""
    parser = TrlParser((GRPOConfig, ModelConfig))  # type: ignore[arg-type]
    training_args, model_args = parser.parse_args_and_config()
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        train_dataset=Dataset.from_list(examples()),
        tools=[multiply, async_add],
        reward_funcs=result_reward,
        args=training_args,
    )
    trainer.train()


if __name__ == "__main__":
    main()
