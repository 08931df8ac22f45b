"""Figures of audited training as JSON lines; ``python -m harness bench training`` runs this and shows them."""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from transformers import PrinterCallback, set_seed
from transformers.utils import logging

from gyms.german_orders import GermanOrders
from gyms.local import LocalGym
from harness.bench import Figure, paired
from trainer.audit import attach
from trainer.bench import tell
from trainer.config import TrainingConfig, training_config
from trainer.grpo import GymTrainer, episode_of, rewards_of
from trainer.gym_training import train
from trainer.opening import opened_gym
from trainer.policy import load_policy

STEPS = 4
ROUNDS = 5
_SHARES: list[float] = []
"""Of generation in the time of the steps, by block."""
WITHIN = 1.10
THROUGH_A_GYM = 1.25
QUALIFICATION_CPU_S = 150.0


def main() -> int:
    """Measure and print; returns the exit code."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory(prefix="gymqual-bench-") as folder, ExitStack() as stack:
        blocks = _blocks(Path(folder), stack)
        for name, bound, oracle in (
            ("audited", WITHIN, "no oracle"),
            ("audited, with oracle", float("inf"), "oracle at every step"),
            ("audited, through nemo", THROUGH_A_GYM, "no oracle"),
            ("audited, through openenv", THROUGH_A_GYM, "no oracle"),
        ):
            tell(say=f"{ROUNDS} interleaved pairs of {STEPS} steps: {name}, and plain TRL")
            ratio, control = paired(blocks[name], blocks["plain"], rounds=ROUNDS)
            note = f"raw {ratio:.3f}, A/A {control:.3f}; {oracle}"
            tell(**asdict(Figure(f"step, {name}, over plain TRL", ratio / control, bound, "x", note)))
        tell(say="one qualification of eight steps")
        tell(**asdict(_qualification(Path(folder) / "qualification")))
    tell(**asdict(Figure("share of generation in a step", median(_SHARES), float("inf"), "", "what dominates it")))
    # On Linux in kibibytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    tell(**asdict(Figure("peak resident memory", peak, float("inf"), "MB", "of this process, all of the above")))
    return 0


def _blocks(folder: Path, stack: ExitStack) -> dict[str, Callable[[], float]]:
    """Return functions that train a few steps and give the wall seconds of the steps alone."""
    tasks = GermanOrders()
    gyms: dict[str, Any] = {"": LocalGym(tasks)}
    gyms |= {name: stack.enter_context(opened_gym(name, None, tasks)) for name in ("nemo", "openenv")}
    numbers, shares = iter(range(10**6)), _SHARES

    def block(gym: str, audited: bool, oracle: bool) -> float:
        config = _config(oracle_steps="every" if oracle else ())
        set_seed(config.seed)
        trainer = GymTrainer(config, load_policy("mini"), gyms[gym], tasks, folder / "trl")
        trainer.remove_callback(PrinterCallback)
        if audited:
            attach(
                trainer,
                folder / f"{next(numbers)}.jsonl",
                oracle_at=config.oracle_at,
                episodes=episode_of,
                rewards=rewards_of(config.shaping),
            )
        generate, spent = trainer._generate_single_turn, []

        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            made = generate(*arguments, **named)
            spent.append(time.perf_counter() - begun)
            return made

        trainer._generate_single_turn = timed  # type: ignore[method-assign]
        started = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - started
        trainer.close_environments()
        shares.append(sum(spent) / took)
        return took

    return {
        "plain": lambda: block("", audited=False, oracle=False),
        "audited": lambda: block("", audited=True, oracle=False),
        "audited, with oracle": lambda: block("", audited=True, oracle=True),
        "audited, through nemo": lambda: block("nemo", audited=True, oracle=False),
        "audited, through openenv": lambda: block("openenv", audited=True, oracle=False),
    }


def _config(**changed: Any) -> TrainingConfig:
    made = training_config("mini", "", "nemo", 43, STEPS)
    return TrainingConfig.model_validate({**made.model_dump(), **changed})


def _qualification(folder: Path) -> Figure:
    """Measure a whole run in this process, from loading the policy to its manifest; its service is another one."""
    before = time.process_time()
    run = train(training_config("mini", "", "nemo", 43), folder, None, Console(quiet=True))
    spent = time.process_time() - before
    note = f"{run.outcome}, {run.tokens.sampled} sampled tokens"
    return Figure("qualification of eight steps, one thread", spent, QUALIFICATION_CPU_S, "CPU-s", note)


if __name__ == "__main__":
    sys.exit(main())
