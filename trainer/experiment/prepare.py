"""Freeze a training run, or a matched experiment: fresh tasks, and the digests of everything that it depends on.

    gymqual prepare RUN_DIR [--policy mini] [--gym nemo] [--seed 43] [--checkpoint-every STEPS]
                                      [--generation exact|cached]
    gymqual prepare --experiment DIR [--arms nemo openenv] [--policy mini] [--seed 43] [--steps 256]

An experiment's protocol, ``DIR/protocol.md``, says what is done and by which rules; ``gymqual experiment DIR`` does it.
"""

import argparse
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.experiment.frozen import PLAN, PROTOCOL, make_plan, require_empty, write_plan
from gymqual.trainer.policy.loading import POLICY_HELP, load_policy
from gymqual.trainer.runs.command import command_parser, require_at_least_one, run_command
from gymqual.trainer.runs.config import CONFIG, GENERATIONS, POOL, TrainingConfig, training_config, write_config
from gymqual.trainer.runs.open_gym import GYMS

RUN_STEPS = 8
EXPERIMENT_STEPS = 256
RUN_ONLY = ("gym", "checkpoint_every", "generation")
EXPERIMENT_ONLY = ("arms", "dev_episodes", "test_episodes", "retention", "retention_problems")
"""Options, by what they belong to."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    return run_command("prepare", lambda: _prepare(options), interrupted="interrupted; nothing was frozen")


def _prepare(options: argparse.Namespace) -> int:
    if (options.folder is None) == (options.experiment is None):
        raise HarnessError("name one folder: RUN_DIR for a training run, or --experiment DIR")
    _require_fitting(options)
    try:
        print(_prepare_run(options) if options.folder else _prepare_experiment(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise HarnessError(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return 0


def _require_fitting(options: argparse.Namespace) -> None:
    strange = RUN_ONLY if options.experiment else EXPERIMENT_ONLY
    given = [f"--{name.replace('_', '-')}" for name in strange if getattr(options, name) is not None]
    if given:
        kind = "a training run, not to an experiment" if options.experiment else "an experiment, not to a training run"
        raise HarnessError(f"{given[0]} belongs to {kind}; leave it out")


def _prepare_run(options: argparse.Namespace) -> str:
    path = options.folder / CONFIG
    if path.exists():
        raise HarnessError(f"{path} exists; a frozen run is not frozen again, name another folder")
    policy, steps = load_policy(options.policy), RUN_STEPS if options.steps is None else options.steps
    gym = options.gym or "nemo"
    made = training_config(options.policy, policy.identity.weights, gym, options.seed, steps, max(POOL, steps))
    chosen = {
        "checkpoint_every": options.checkpoint_every or 0,
        "generation": options.generation or made.generation,
    }
    config = TrainingConfig.model_validate({**made.model_dump(), **chosen})
    options.folder.mkdir(parents=True, exist_ok=True)
    write_config(config, path)
    said = f"{path}: {config.policy} through {config.gym}, {config.steps} steps, {len(config.tasks)} tasks"
    return f"{said}, generation {config.generation}"


def _prepare_experiment(options: argparse.Namespace) -> str:
    folder: Path = options.experiment
    require_empty(folder)
    steps = EXPERIMENT_STEPS if options.steps is None else options.steps
    if steps < 2:
        raise HarnessError(f"--steps {steps} must be at least 2: a training of one has no middle to be stopped in")
    for name in ("dev_episodes", "test_episodes"):
        if (episodes := getattr(options, name)) is not None:
            require_at_least_one(f"--{name.replace('_', '-')}", episodes)
    data = retention_folder(options.retention)
    plan = make_plan(
        options.policy,
        options.arms or list(GYMS),
        options.seed,
        steps,
        data=data,
        problems=options.retention_problems,
        **{name: value for name in ("dev_episodes", "test_episodes") if (value := getattr(options, name)) is not None},
    )
    write_plan(plan, folder)
    lines = [f"{folder / PROTOCOL}: {plan.policy.name} through {' and '.join(plan.arms)}, {steps} steps"]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes), f"next: gymqual experiment {folder}"])


def retention_folder(named: Path | None) -> Path | None:
    """Return the folder of MGSM: the one that is named, or the one of GYMQUAL_MGSM, or None."""
    variable = os.environ.get("GYMQUAL_MGSM")
    return named or (Path(variable) if variable else None)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "prepare",
        __doc__,
        "RUN_DIR --gym openenv --checkpoint-every 4",
        {0: "frozen", 130: "interrupted"},
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="RUN_DIR", help=f"folder of a training run, which gets {CONFIG}"
    )
    parser.add_argument(
        "--experiment",
        type=Path,
        metavar="DIR",
        help=f"folder of an experiment, which gets {PLAN} (default: a training run is frozen)",
    )
    parser.add_argument("--policy", default="mini", help=POLICY_HELP)
    parser.add_argument("--seed", type=int, default=43, help="of tasks and training (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, help=f"optimizer steps (default: {RUN_STEPS}, of an experiment {EXPERIMENT_STEPS})"
    )
    parser.add_argument("--gym", choices=GYMS, help="gym of a run (default: nemo)")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="STEPS",
        help="of a run, a checkpoint after so many steps each (default: 0, none)",
    )
    parser.add_argument(
        "--generation", choices=GENERATIONS, help="of a run, exact, or cached: faster, other bits (default: exact)"
    )
    parser.add_argument("--arms", nargs="+", choices=GYMS, help=f"gyms of an experiment (default: {' '.join(GYMS)})")
    parser.add_argument(
        "--dev-episodes",
        type=int,
        metavar="N",
        help="of an experiment, dev episodes that select a candidate (default: 256)",
    )
    parser.add_argument(
        "--test-episodes", type=int, metavar="N", help="of an experiment, test episodes that assess it (default: 512)"
    )
    parser.add_argument(
        "--retention",
        type=Path,
        metavar="DIR",
        help="folder of mgsm_de.tsv and mgsm_en.tsv (default: GYMQUAL_MGSM, else problems of our own)",
    )
    parser.add_argument(
        "--retention-problems", type=int, metavar="N", help="of each retention file, from its beginning (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
