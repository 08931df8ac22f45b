"""Freeze a training run, or a matched experiment: fresh tasks, and the digests of everything that it depends on.

    gymqual prepare RUN_DIR [--policy mini] [--gym nemo] [--seed 43] [--checkpoint-every STEPS]
                                      [--generation exact|cached]
    gymqual prepare --experiment DIR [--arms nemo openenv] [--policy mini] [--seed 43] [--steps 256]

An experiment's protocol, ``DIR/protocol.md``, says what is done and by which rules; ``gymqual experiment DIR`` does it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import ValidationError

from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.experiment.frozen import PLAN, PROTOCOL, make_plan, require_empty, write_plan
from gymqual.trainer.policy.loading import POLICY_HELP, load_policy
from gymqual.trainer.runs.config import CONFIG, POOL, Generation, TrainingConfig, training_config, write_config
from gymqual.trainer.runs.open_gym import GYMS, GymName

RUN_STEPS = 8
EXPERIMENT_STEPS = 256
RUN_ONLY = ("gym", "checkpoint_every", "generation")
EXPERIMENT_ONLY = ("arms", "dev_episodes", "test_episodes", "retention", "retention_problems")
"""Options, by what they belong to."""


def prepare(
    folder: Annotated[
        Path | None, Parameter(name="RUN_DIR", help=f"Folder of a training run, which gets {CONFIG}.")
    ] = None,
    /,
    *,
    experiment: Annotated[Path | None, Parameter(help=f"Folder of an experiment instead, which gets {PLAN}.")] = None,
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    seed: Annotated[int, Parameter(help="Of tasks and training.")] = 43,
    steps: Annotated[
        int | None, Parameter(help=f"Optimizer steps: {RUN_STEPS} without it, of an experiment {EXPERIMENT_STEPS}.")
    ] = None,
    gym: Annotated[GymName | None, Parameter(help="Of a run: its gym, nemo without it.")] = None,
    checkpoint_every: Annotated[int | None, Parameter(help="Of a run: a checkpoint after so many steps each.")] = None,
    generation: Annotated[
        Generation | None, Parameter(help="Of a run: exact, as without it, or cached: faster, other bits.")
    ] = None,
    arms: Annotated[
        list[GymName] | None, Parameter(help=f"Of an experiment: its gyms, {' and '.join(GYMS)} without it.")
    ] = None,
    dev_episodes: Annotated[
        int | None, Parameter(help="Of an experiment: dev episodes that select a candidate, 256 without it.")
    ] = None,
    test_episodes: Annotated[
        int | None, Parameter(help="Of an experiment: test episodes that assess it, 512 without it.")
    ] = None,
    retention: Annotated[
        Path | None,
        Parameter(help="Folder of mgsm_de.tsv and mgsm_en.tsv: GYMQUAL_MGSM without it, else problems of our own."),
    ] = None,
    retention_problems: Annotated[
        int | None, Parameter(help="Of each retention file, from its beginning; all without it.")
    ] = None,
) -> None:
    """Freeze a training run, or a matched experiment: tasks, and the digests of all that it depends on."""
    of_run = {"gym": gym, "checkpoint-every": checkpoint_every, "generation": generation}
    of_experiment = {
        "arms": arms,
        "dev-episodes": dev_episodes,
        "test-episodes": test_episodes,
        "retention": retention,
        "retention-problems": retention_problems,
    }
    if (folder is None) == (experiment is None):
        raise HarnessError("name one folder: RUN_DIR for a training run, or --experiment DIR")
    _require_none(of_run if experiment else of_experiment, "a training run" if experiment else "an experiment")
    try:
        if folder is not None:
            print(_prepare_run(folder, policy, seed, steps, gym, checkpoint_every, generation))
        elif experiment is not None:
            episodes = {"dev_episodes": dev_episodes, "test_episodes": test_episodes}
            given = {name: count for name, count in episodes.items() if count is not None}
            for name, count in given.items():
                require_at_least_one(f"--{name.replace('_', '-')}", count)
            data = retention_folder(retention)
            print(_prepare_experiment(experiment, policy, seed, steps, arms, data, retention_problems, given))
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"])).replace("_", "-")
        raise HarnessError(f"--{option}: {first['msg']}") from None


def _require_none(strange: Mapping[str, object], kind: str) -> None:
    given = [f"--{name}" for name, value in strange.items() if value is not None]
    if given:
        other = "an experiment" if kind == "a training run" else "a training run"
        raise HarnessError(f"{given[0]} belongs to {kind}, not to {other}; leave it out")


def _prepare_run(
    folder: Path,
    policy: str,
    seed: int,
    steps: int | None,
    gym: str | None,
    checkpoint_every: int | None,
    generation: str | None,
) -> str:
    path = folder / CONFIG
    if path.exists():
        raise HarnessError(f"{path} exists; a frozen run is not frozen again, name another folder")
    weights, steps = load_policy(policy).identity.weights, RUN_STEPS if steps is None else steps
    made = training_config(policy, weights, gym or "nemo", seed, steps, max(POOL, steps))
    chosen = {"checkpoint_every": checkpoint_every or 0, "generation": generation or made.generation}
    config = TrainingConfig.model_validate({**made.model_dump(), **chosen})
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, path)
    said = f"{path}: {config.policy} through {config.gym}, {config.steps} steps, {len(config.tasks)} tasks"
    return f"{said}, generation {config.generation}"


def _prepare_experiment(
    folder: Path,
    policy: str,
    seed: int,
    steps: int | None,
    arms: Sequence[str] | None,
    data: Path | None,
    problems: int | None,
    episodes: Mapping[str, int],
) -> str:
    require_empty(folder)
    steps = EXPERIMENT_STEPS if steps is None else steps
    if steps < 2:
        raise HarnessError(f"--steps {steps} must be at least 2: a training of one has no middle to be stopped in")
    plan = make_plan(policy, arms or list(GYMS), seed, steps, data=data, problems=problems, **episodes)
    write_plan(plan, folder)
    lines = [f"{folder / PROTOCOL}: {plan.policy.name} through {' and '.join(plan.arms)}, {steps} steps"]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes), f"next: gymqual experiment {folder}"])


def retention_folder(named: Path | None) -> Path | None:
    """Return the folder of MGSM: the one that is named, or the one of GYMQUAL_MGSM, or None."""
    variable = os.environ.get("GYMQUAL_MGSM")
    return named or (Path(variable) if variable else None)
