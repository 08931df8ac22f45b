"""Freeze a training run: a fresh task pool and the digests of everything that it depends on.

python -m trainer.prepare RUN_DIR [--policy mini] [--gym nemo] [--seed 43] [--checkpoint-every STEPS]
"""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from gyms import loaded
from harness.errors import HarnessError
from trainer.config import CONFIG, TrainingConfig, write_config
from trainer.opening import GYMS
from trainer.policy import POLICY_HELP, load_policy

POOL = 16
"""Tasks of a frozen pool."""


def training_config(policy: str, weights: str, gym: str, seed: int, steps: int = 8, pool: int = POOL) -> TrainingConfig:
    """Return a configuration with a pool of the train split, which shares no record with sft, dev and test."""
    return TrainingConfig(
        gym=gym,  # type: ignore[arg-type]
        policy=policy,
        policy_weights=weights,
        core=loaded.core_on_disk(),
        seed=seed,
        steps=steps,
        tasks=tuple(f"v1/train/{seed}/{index}" for index in range(pool)),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="RUN_DIR", help=f"folder that gets {CONFIG}")
    parser.add_argument("--policy", default="mini", help=POLICY_HELP)
    parser.add_argument("--gym", choices=GYMS, default="nemo")
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0: none (%(default)s)")
    options = parser.parse_args(arguments)
    path = options.folder / CONFIG
    try:
        if path.exists():
            raise HarnessError(f"{path} exists; a frozen run is not frozen again, name another folder")
        policy = load_policy(options.policy)
        pool = max(POOL, options.steps)
        config = training_config(
            options.policy, policy.identity.weights, options.gym, options.seed, options.steps, pool
        )
        config = TrainingConfig.model_validate({**config.model_dump(), "checkpoint_every": options.checkpoint_every})
        options.folder.mkdir(parents=True, exist_ok=True)
        write_config(config, path)
    except ValidationError as error:
        first = error.errors()[0]
        print(f"prepare: --{'.'.join(map(str, first['loc']))}: {first['msg']}", file=sys.stderr)
        return 2
    except (HarnessError, OSError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {config.policy} through {config.gym}, {config.steps} steps, {len(config.tasks)} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
