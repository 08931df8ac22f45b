"""A matched experiment of two steps, whose trainings play their tasks in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gymqual.harness.records.errors import HarnessError
from gymqual.qualification.support.training.small_run import identity_here, played_here
from gymqual.trainer.experiment import frozen, resume, schedule
from gymqual.trainer.experiment.frozen import make_plan, write_plan
from gymqual.trainer.experiment.result import Summary
from gymqual.trainer.experiment.resume import Resume
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.errors import Stopped

QUIET = Console(quiet=True)

Freeze = Callable[..., Path]


def freezing(patch: pytest.MonkeyPatch) -> Freeze:
    """Return what freezes a plan of two steps into a folder; gyms and resume qualifications are not asked for."""
    patch.setattr(frozen, "gym_digest", lambda arm: identity_here(arm).digest)
    patch.setattr(resume, "qualify", qualified("exact"))
    patch.delenv("GYMQUAL_MGSM", raising=False)
    small = {"named": "mini4", "dev_episodes": 4, "test_episodes": 4, "problems": 2, "steps": 2, "arms": ("nemo",)}

    def freeze(folder: Path, **changed: Any) -> Path:
        sizes: dict[str, Any] = {**small, **changed}
        write_plan(make_plan(seed=43, **sizes), folder)
        return folder

    return freeze


def qualified(kind: resume.Class) -> Callable[..., Resume]:
    return lambda config, folder, say: Resume(
        steps=config.steps,
        stopped_after=config.steps // 2,
        kind=kind,
        differences=() if kind == "exact" else ("record 3",),
        broken=(),
        manifests=("0" * 64, "0" * 64),
    )


def two_steps() -> TrainingConfig:
    """A training of two steps, with a checkpoint at each."""
    made = training_config("mini4", load_policy("mini4").identity.weights, "nemo", 43, 2)
    return TrainingConfig.model_validate({**made.model_dump(), "checkpoint_every": 1})


def scheduled(folder: Path, data: Path | None = None, *, accepts_inexact: bool = False) -> Summary:
    with played_here():
        return schedule.run(folder, QUIET, data, accepts_inexact)


def refusal(folder: Path, **named: Any) -> str:
    """Return what a schedule says to a folder, and that nothing was written or lost by it."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}
    said = "it was carried out"
    try:
        scheduled(folder, **named)
    except (HarnessError, Stopped) as error:
        said = str(error)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}
    lost = [path.name for path, content in before.items() if after.get(path) != content]
    return said + (f" (changed: {lost})" if lost else "")
