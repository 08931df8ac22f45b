"""How fast the embedded policy is built, sampled and evaluated: ``gymqual bench policy``."""

import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.cli.bench import measured, show
from gymqual.harness.process.own import own_command, own_environment
from gymqual.harness.records.figures import ROUNDS, Figure, Say, paired
from gymqual.trainer.evaluation import rollout
from gymqual.trainer.evaluation.rollout import MAX_NEW_TOKENS, Sampling
from gymqual.trainer.policy.loading import Policy, load_policy
from gymqual.trainer.policy.transcripts import render_ids, token_id, tool_schemas

BATCH = 16
TURNS = 5
"""Batches a block: a block of one is too short to time."""
EPISODES = 128


def command() -> int:
    """Measure building, sampling and evaluating the embedded policy."""
    torch.set_num_threads(1)
    return show(measured(bench_policy))


def bench_policy(say: Say) -> list[Figure]:
    """Return the figures of the embedded policy."""
    say(f"{ROUNDS} interleaved pairs of {BATCH} sampled turns, ours and plain model.generate")
    ratio, control = generation()
    # Ours may take 1/0.95 of the reference's time for a token: 0.95 of its tokens per second.
    note = f"{control / ratio:.3f} of its tokens a second; raw {ratio:.3f}, A/A {control:.3f}"
    figures = [Figure(f"CPU per token over plain generate, batch {BATCH}", ratio / control, 1 / 0.95, "x", note)]
    say(f"{EPISODES} episodes, at temperature 1 and greedy")
    evaluated = cpu_s("evaluate", "--policy", "mini", "--episodes", str(EPISODES), "--gym", "local")
    figures.append(Figure(f"{EPISODES} episodes evaluated", evaluated, 30.0, "CPU-s"))
    say("building mini")
    with tempfile.TemporaryDirectory(prefix="gymqual-bench-") as folder:
        built = cpu_s("sft", "--policy", "mini", "--out", str(Path(folder) / "mini"))
    return [*figures, Figure("build of mini, one thread", built, 240.0, "CPU-s")]


def generation() -> tuple[float, float]:
    """Return (our CPU time per sampled token over plain ``generate``, the latter over itself)."""
    policy, tasks = load_policy("mini"), GermanOrders()
    contexts = [
        render_ids(policy.tokenizer, tasks.prompt(task), tools=tool_schemas(tasks), add_generation_prompt=True)
        for task in (f"v1/dev/0/{index}" for index in range(BATCH))
    ]

    def ours() -> int:
        return sum(map(len, rollout._generate(policy.model, policy.tokenizer, contexts, Sampling())))

    padded = policy.tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")

    def plain() -> int:
        return _plain(policy, padded)

    return paired(lambda: _per_token(ours), lambda: _per_token(plain))


def _plain(policy: Policy, padded: Any) -> int:
    end, padding = token_id(policy.tokenizer.eos_token_id), token_id(policy.tokenizer.pad_token_id)
    generate: Any = policy.model.generate
    output = generate(**padded, max_new_tokens=MAX_NEW_TOKENS, eos_token_id=end, pad_token_id=padding, **_SAMPLING)
    return int((output[:, padded["input_ids"].shape[1] :] != padding).sum())


_SAMPLING = Sampling().arguments()


@torch.inference_mode()
def _per_token(turn: Callable[[], int]) -> float:
    started, tokens = time.process_time(), 0
    for seed in range(TURNS):
        torch.manual_seed(seed)
        tokens += turn()
    return (time.process_time() - started) / tokens


def cpu_s(*arguments: str) -> float:
    """Return the CPU seconds of one command, its imports included; raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(own_command(*arguments), env=own_environment(), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
