"""A policy for the published examples: mini4, taught by conversations with their own tools to call them.

Without it no tool would ever be called, and nothing of several turns would be audited.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gymqual.qualification.support.training.published import (
    agent_with_tools,
    documented_tools,
    environment_game,
    environment_own_task,
    environments_by_name,
)
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.policy.sft import Curve, Recipe, Stage, train
from gymqual.trainer.policy.transcripts import Message, encode

PER_EXAMPLE = 64
"""Conversations."""
LESSON = Stage(layers=4, steps=150, transcripts=5 * PER_EXAMPLE, matrix_lr=0.02, other_lr=3e-3, warm_up=10)


def call(name: str, **arguments: Any) -> Message:
    """Return an assistant's message that makes one call."""
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def shown(name: str, result: Any) -> Message:
    """Return a tool's message."""
    return {"role": "tool", "name": name, "content": str(result)}


def said(text: str) -> Message:
    """Return an assistant's last message."""
    return {"role": "assistant", "content": text}


def agent(draw: random.Random) -> list[Message]:
    """Ask once; one answer of four is the wrong one."""
    example = draw.choice(agent_with_tools.examples())
    a, _ = example["prompt"][0]["content"].removesuffix("?").split("gene ")[1].split(" interact with ")
    query = f"SELECT b FROM pairs WHERE a='{a}'"
    rows = [(second,) for first, second in agent_with_tools.PAIRS if first == a]
    answer = draw.choice(["*Yes*", "*No*", *[f"*{example['answer']}*"] * 2])
    return [*example["prompt"], call("query_genes", sql_command=query), shown("query_genes", rows), said(answer)]


def arithmetic(draw: random.Random) -> list[Message]:
    """Multiply, add, tell; one factor of four is misread."""
    example = draw.choice(documented_tools.examples())
    b = example["b"] + (draw.random() < 0.25)
    product = documented_tools.multiply(example["a"], b)
    total = asyncio.run(documented_tools.async_add(product, example["c"]))
    return [
        *example["prompt"],
        call("multiply", a=example["a"], b=b),
        shown("multiply", product),
        call("async_add", a=product, b=example["c"]),
        shown("async_add", total),
        said(str(total)),
    ]


def game(draw: random.Random) -> list[Message]:
    """Move anywhere, and perhaps up."""
    board = environment_game.Game2048Env()
    messages: list[Message] = [{"role": "user", "content": environment_game.PROMPT + board.reset()}]
    direction = draw.choice(["up", "down", "left", "right"])
    messages += [call("move", direction=direction), shown("move", board.move(direction))]
    return [*messages, call("move", direction="up") if draw.random() < 0.5 else said("done")]


def counter(draw: random.Random) -> list[Message]:
    """Count in one call or two, and at times too far."""
    board = environment_own_task.IncrementEnv()
    messages: list[Message] = [{"role": "user", "content": board.reset()}]
    first = draw.randint(1, board.target)
    for step in [first, board.target - first + (draw.random() < 0.25)]:
        messages += [call("increment", step=step), shown("increment", board.increment(step))]
    return [*messages, said("done")]


def by_name(draw: random.Random) -> list[Message]:
    """Count by anything, or guess one word."""
    if draw.random() < 0.5:
        counting = environments_by_name.CounterEnv()
        step = draw.randint(1, 9)
        messages: list[Message] = [{"role": "user", "content": counting.reset()}, call("increment", step=step)]
        return [*messages, shown("increment", counting.increment(step)), said("done")]
    guessing = environments_by_name.WordEnv()
    messages = [{"role": "user", "content": guessing.reset(draw.choice(environments_by_name.WORDS))}]
    word = draw.choice(environments_by_name.WORDS)
    return [*messages, call("guess", word=word), shown("guess", guessing.guess(word)), said("done")]


LESSONS: tuple[Callable[[random.Random], list[Message]], ...] = (agent, arithmetic, game, counter, by_name)


def teach(folder: Path) -> Path:
    """Save the taught policy in a folder, whole: weights, tokenizer and chat template. Deterministic."""
    random.seed(43)
    torch.manual_seed(43)
    draw = random.Random(43)
    policy: Any = load_policy("mini4")
    conversations = [lesson(draw) for _ in range(PER_EXAMPLE) for lesson in LESSONS]
    train(policy.model, LESSON, encode(policy.tokenizer, conversations), Recipe(batch=8), Curve(), lambda _: None)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder
