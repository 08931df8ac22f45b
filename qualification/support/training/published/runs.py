"""Running a published script as it is, and with the lines that a user adds to have it audited."""

import json
import random
import runpy
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from trl.scripts import grpo
from trl.trainer.grpo_trainer import GRPOTrainer

BEFORE = ("from gymqual import attach", 'audit = attach(trainer, "trace.jsonl")')
AFTER = ('print(f"audited: {len(audit.steps)} steps, {len(audit.rollouts)} rollouts, {audit.tokens}")',)
ADDED = (*BEFORE, *AFTER)
"""What a user adds, around ``trainer.train``."""
HERE = Path(__file__).parent
REWARDING = '''
def length(completions, **_):
    """A reward that varies within a group without any meaning."""
    return [float(len(str(completion)) % 7) for completion in completions]
'''
"""The module that the command line of TRL's own script takes its reward from."""
COMMON = (
    "--output_dir=trl --max_steps=3 --per_device_train_batch_size=8 --num_generations=4 --learning_rate=1e-4 "
    "--bf16=False --gradient_checkpointing=False --use_cpu=True --report_to=none --save_strategy=no "
    "--disable_tqdm=True --logging_steps=1"
)
"""Sizes for a CPU and three steps; everything else is what the published script or TRL says."""


@dataclass(frozen=True)
class Published:
    """A script and its command line."""

    path: Path
    arguments: str = ""
    turns: int = 2
    """Turns that some rollout must reach, or the audit had no conversation to follow."""


SCRIPTS = {
    "trl/scripts/grpo.py": Published(
        Path(grpo.__file__), "--dataset_name=data --reward_funcs=rewarding.length --max_completion_length=32", turns=1
    ),
    "agent_with_tools": Published(HERE / "agent_with_tools.py", "--max_completion_length=128"),
    "documented_tools": Published(HERE / "documented_tools.py", "--max_completion_length=128", turns=3),
    "environment_game": Published(
        HERE / "environment_game.py",
        "--max_completion_length=160 --gradient_accumulation_steps=2 --per_device_train_batch_size=4 "
        "--log_completions=True --num_completions_to_print=2",
    ),
    "environment_own_task": Published(HERE / "environment_own_task.py", "--max_completion_length=128", turns=3),
    "environments_by_name": Published(HERE / "environments_by_name.py", "--max_completion_length=128"),
}


def with_added(source: str) -> str:
    """Return a script's source with the added lines around its one ``trainer.train``."""
    lines = source.splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if line.lstrip().startswith("trainer.train("))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    before, after = ([f"{indent}{line}\n" for line in each] for each in (BEFORE, AFTER))
    return "".join([*lines[:at], *before, lines[at], *after, *lines[at + 1 :]])


@dataclass
class Ran:
    """What a run of a script came to."""

    seconds: float = 0.0
    """Of training alone."""
    sampled: list[list[int]] = field(default_factory=list)
    masks: list[list[int]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    """What the audit recorded; empty without it."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of one kind."""
        return [record for record in self.trace if record["kind"] == kind]


def run(
    script: Published, policy: Path, folder: Path, patch: pytest.MonkeyPatch, *, audited: bool, seed: int = 43
) -> Ran:
    """Run a script in an empty folder, as ``python script.py`` would; raises what it raises."""
    folder.mkdir()
    (folder / "data").mkdir()
    rows = [{"prompt": [{"role": "user", "content": f"Wie viele {number}? "}]} for number in range(16)]
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewarding.py").write_text(REWARDING)
    source = script.path.read_text()
    copy = folder / script.path.name
    copy.write_text(with_added(source) if audited else source)
    ran = Ran()
    with patch.context() as context:
        _note(context, ran)
        context.chdir(folder)
        context.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        arguments = [f"--model_name_or_path={policy}", f"--seed={seed}", *COMMON.split(), *script.arguments.split()]
        # TRL's own script adds the folder that it runs in.
        context.setattr(sys, "path", [*sys.path])
        context.setattr(sys, "argv", [str(copy), *arguments])
        random.seed(seed)
        runpy.run_path(str(copy), run_name="__main__")
    if audited:
        ran.trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return ran


def _note(patch: pytest.MonkeyPatch, ran: Ran) -> None:
    """Note what trainers sample and how long they train, beneath script and audit."""
    generate, train = GRPOTrainer._generate, GRPOTrainer.train

    def noting(self: Any, prompts: list[Any]) -> Any:
        made = generate(self, prompts)
        ran.sampled.extend(made[1])
        ran.masks.extend(made[2] or [])
        return made

    def timed(self: Any, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return train(self, *arguments, **named)
        finally:
            ran.seconds = time.perf_counter() - start

    patch.setattr(GRPOTrainer, "_generate", noting)
    patch.setattr(GRPOTrainer, "train", timed)
