"""How fast audited training is beside plain TRL: ``gymqual bench training``."""

import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from transformers import PrinterCallback, TrainerCallback, set_seed
from transformers.utils import logging

from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.cli.bench import measured, show
from gymqual.harness.records.figures import Figure, Say, paired
from gymqual.trainer.grpo.train import train
from gymqual.trainer.grpo.trainer import GymTrainer, attach_audit
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.profiling.plain import PlainTRL
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.open_gym import opened_gym

STEPS = 4
ROUNDS = 5
_SHARES: list[float] = []
"""Of generation in the time of the steps, by block."""
WITHIN = 1.10
CACHED = 0.75
QUALIFICATION_CPU_S = 150.0


def command() -> int:
    """Measure audited training over plain TRL, in this process and through the gyms."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    return show(measured(bench_training))


def bench_training(say: Say) -> list[Figure]:
    """Return the figures of audited training."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="gymqual-bench-") as folder, ExitStack() as stack:
        blocks = _blocks(Path(folder), stack)
        for name, bound, oracle in (
            ("audited", WITHIN, "no oracle"),
            ("audited, with oracle", float("inf"), "oracle at every step"),
            ("audited, through nemo", WITHIN, "no oracle"),
            ("audited, through openenv", WITHIN, "no oracle"),
            ("cached, audited, through nemo", CACHED, "no oracle"),
            ("cached, audited, through openenv", CACHED, "no oracle"),
        ):
            say(f"{ROUNDS} interleaved pairs of {STEPS} steps: {name}, and plain TRL")
            ratio, control = paired(blocks[name], blocks["plain"], rounds=ROUNDS)
            note = f"raw {ratio:.3f}, A/A {control:.3f}; {oracle}"
            figures.append(Figure(f"step, {name}, over plain TRL", ratio / control, bound, "x", note))
        say("one qualification of eight steps")
        figures.append(_qualification(Path(folder) / "qualification"))
    share = Figure("share of generation in a step of plain TRL", median(_SHARES), float("inf"), "", "what dominates it")
    # On Linux in kibibytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    memory = Figure("peak resident memory", peak, float("inf"), "MB", "of this process, all of the above")
    return [*figures, share, memory]


def _blocks(folder: Path, stack: ExitStack) -> dict[str, Callable[[], float]]:
    """Return functions that train a few steps and give the wall seconds of the steps alone."""
    tasks = GermanOrders()
    gyms: dict[str, Any] = {"": LocalGym(tasks)}
    gyms |= {name: stack.enter_context(opened_gym(name, None, tasks)) for name in ("nemo", "openenv")}
    numbers, shares = iter(range(10**6)), _SHARES

    def block(trainer_class: type[GymTrainer], gym: str, audited: bool, **settings: Any) -> float:
        config = _config(**{"oracle_steps": (), **settings})
        set_seed(config.seed)
        trainer = trainer_class(config, load_policy("mini"), gyms[gym], tasks, folder / "trl")
        trainer.remove_callback(PrinterCallback)
        if audited:
            attach_audit(trainer, config, folder / f"{next(numbers)}.jsonl")
        generate, spent = trainer._generate_single_turn, []

        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            made = generate(*arguments, **named)
            spent.append(time.perf_counter() - begun)
            return made

        trainer._generate_single_turn = timed  # type: ignore[method-assign]
        # Last of all callbacks: what the audit does at the end of a step is part of it.
        steps = _Steps()
        trainer.add_callback(steps)
        trainer.train()
        trainer.close_environments()
        if trainer_class is PlainTRL:
            shares.append(sum(spent) / steps.seconds)
        return steps.seconds

    return {
        "plain": lambda: block(PlainTRL, "", audited=False),
        "audited": lambda: block(GymTrainer, "", audited=True),
        "audited, with oracle": lambda: block(GymTrainer, "", audited=True, oracle_steps="every"),
        **{
            f"{mode}audited, through {gym}": partial(block, GymTrainer, gym, audited=True, generation=generation)
            for gym in ("nemo", "openenv")
            for mode, generation in (("", "exact"), ("cached, ", "cached"))
        },
    }


class _Steps(TrainerCallback):
    """Takes the wall time of the steps: what comes once before the first, as collecting garbage, is none of theirs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.seconds += time.perf_counter() - self._begun


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
