"""Freezing an experiment, and holding it to what was frozen.

``experiment.json`` is the plan, ``protocol.md`` the same for people, rendered from it.
"""

import math
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from gymqual import __version__
from gymqual.gyms import loaded
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.run_records import Sha256
from gymqual.trainer.evaluation import retention
from gymqual.trainer.experiment.plan import Assessment, Plan, RetentionData, RetentionRule
from gymqual.trainer.experiment.protocol import TITLE, protocol
from gymqual.trainer.grpo.train import device_name
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.manifest import PolicyRecord
from gymqual.trainer.runs.open_gym import opened_gym

PLAN = "experiment.json"
PROTOCOL = "protocol.md"
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "tokenizers", "numpy")
GROUPS_PER_STEP = 2
LEARNING_RATE = 2e-4
"""Steady over 256 steps of ``mini``, where that of short runs, with twice the rollouts, is not; see the protocol."""
CHECKPOINTS = 8
"""Candidates of the selection, at equal distances."""
RESUME_STEPS = 4
"""Optimizer steps of the resume qualification."""


def make_plan(
    named: str,
    arms: Sequence[str],
    seed: int,
    steps: int,
    *,
    dev_episodes: int = 256,
    test_episodes: int = 512,
    data: Path | None = None,
    problems: int | None = None,
) -> Plan:
    """Look at everything that an experiment depends on, the live gyms included, and return its plan.

    ``data`` is the folder of MGSM, or None for the problems of our own; ``problems`` how many of a file are asked.
    Raises HarnessError and InfrastructureError.
    """
    policy = load_policy(named)
    made = training_config(named, policy.identity.weights, arms[0], seed, steps, steps * GROUPS_PER_STEP)
    chosen = {
        "groups_per_step": GROUPS_PER_STEP,
        "learning_rate": LEARNING_RATE,
        "checkpoint_every": max(1, steps // CHECKPOINTS),
    }
    notes = [*policy.notes]
    if data is None:
        notes.append("retention is asked of 40 German problems of our own: MGSM was not at hand (GYMQUAL_MGSM)")
    try:
        return Plan(
            arms=tuple(arms),  # type: ignore[arg-type]
            training=TrainingConfig.model_validate({**made.model_dump(), **chosen}),
            policy=PolicyRecord(**policy.identity.to_json()),
            gyms={arm: gym_digest(arm) for arm in dict.fromkeys(arms)},
            versions=versions(),
            device=device_name(),
            resume_steps=min(RESUME_STEPS, steps),
            dev=Assessment(split="dev", episodes=dev_episodes),
            test=Assessment(split="test", episodes=test_episodes),
            retention=tuple(_data(path, problems) for path in retention_files(data)),
            retention_rule=RetentionRule(uniform_nats=math.log(policy.model.config.vocab_size)),
            notes=tuple(notes),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise HarnessError(f"{where}: {said}" if where else said) from None


def gym_digest(arm: str) -> Sha256:
    """Return the digest of a gym's live identity; raises HarnessError and InfrastructureError."""
    with opened_gym(arm, None, GermanOrders()) as gym:
        return gym.identity().digest


def versions() -> dict[str, str]:
    """Return the versions that the sampled ids depend on."""
    own = {"gymqual": __version__, "python": platform.python_version()}
    return {**own, **{name: version(name) for name in LIBRARIES}}


def retention_files(folder: Path | None) -> list[Path]:
    """Return the files of problems, German and English; without a folder the one of our own."""
    if folder is None:
        return [retention.PROBE]
    return [folder / f"mgsm_{language}.tsv" for language in retention.LANGUAGES]


def _data(path: Path, problems: int | None) -> RetentionData:
    present = len(retention.read_problems(path))
    if problems is not None and not 1 <= problems <= present:
        raise HarnessError(f"--retention-problems {problems}: {path.name} has {present}")
    return RetentionData(name=path.name, sha256=sha256_file(path), problems=problems or present)


def write_plan(plan: Plan, folder: Path) -> None:
    """Write plan and protocol; raises HarnessError where an experiment is already."""
    require_empty(folder)
    write_atomically(folder / PROTOCOL, protocol(plan).encode())
    write_atomically(folder / PLAN, readable_json(plan.model_dump(mode="json")))


def require_empty(folder: Path) -> None:
    """Raise HarnessError for a folder in which an experiment would stand among other files."""
    if (folder / PLAN).exists():
        raise HarnessError(f"{folder / PLAN} exists; a frozen experiment is not frozen again, name another folder")
    if folder.exists() and not folder.is_dir():
        raise HarnessError(f"{folder} is no folder; name another")
    # A protocol alone is of a freezing that was killed.
    others = sorted(path.name for path in folder.iterdir() if path.name != PROTOCOL) if folder.exists() else []
    if others:
        raise HarnessError(f"{folder} holds {others[0]}; name an empty folder")
    told = folder / PROTOCOL
    if told.is_file() and not told.read_bytes().startswith(TITLE.encode()):
        raise HarnessError(f"{told} is not of an experiment; name an empty folder")


def read_plan(folder: Path) -> Plan:
    """Read a plan; raises HarnessError for one that is missing, no plan, or no longer what its protocol says."""
    path = folder / PLAN
    if not path.exists():
        raise HarnessError(f"{path} is missing; make one with gymqual prepare --experiment {folder}")
    plan = read_result(path, Plan)
    told = folder / PROTOCOL
    if not told.is_file() or told.read_bytes() != protocol(plan).encode():
        raise HarnessError(f"{told} is not what {PLAN} says: one of them was changed; restore it, or prepare anew")
    return plan


def require_unchanged(plan: Plan, folder: Path | None, arms: Sequence[str]) -> None:
    """Raise HarnessError naming every frozen input that is another one now.

    ``arms`` are those whose gyms are still needed. ``folder`` is that of MGSM.
    """
    policy, libraries, core = load_policy(plan.training.policy).identity.to_json(), versions(), loaded.core_on_disk()
    now = {
        "core": (plan.training.core, plan.training.core if loaded.same_core(plan.training.core, core) else core),
        **{f"policy {name}": (str(told), str(policy[name])) for name, told in plan.policy.model_dump().items()},
        "device": (plan.device, device_name()),
        **{name: (told, libraries.get(name, "none")) for name, told in plan.versions.items()},
        **{data.name: (data.sha256, _sha256(path_of(data, folder))) for data in plan.retention},
        **{f"gym {arm}": (plan.gyms[arm], gym_digest(arm)) for arm in arms},
    }
    differing = [f"{name} was {told[:40]}, is {found[:40]}" for name, (told, found) in now.items() if told != found]
    if differing:
        raise HarnessError(f"the experiment is frozen, and {'; '.join(differing)}; restore it, or prepare a new one")


def path_of(data: RetentionData, folder: Path | None) -> Path:
    """Return where a file of problems is; raises HarnessError."""
    if data.name == retention.PROBE.name:
        return retention.PROBE
    if folder is None:
        raise HarnessError(f"{data.name} is needed: name its folder with --retention or GYMQUAL_MGSM")
    return folder / data.name


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise HarnessError(f"{path} cannot be read ({error.strerror}); name its folder with --retention") from None
