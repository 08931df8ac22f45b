"""Train a policy through a gym, audited to the token, and leave a run directory that others can verify.

    gymqual prepare RUN_DIR
    gymqual train RUN_DIR/training.json [--gym nemo|openenv] [--gym-url URL] [--policy P] [--dry-run]

Without ``--gym-url`` the gym's service is started and owned here; with it, its live identity is agreed on. Whatever
breaks in the gym, or does not hold in the audit, ends the run before the optimizer step that would use it; what was
finished until then is on disk, the manifest says why the run stopped, and the exit code is 1.
"""

import os
import platform
import signal
import sys
import threading
import time
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from pydantic import ValidationError
from rich.console import Console
from transformers import PrinterCallback, set_seed

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity, InfrastructureError
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.cli.checks import require_at_least_one, sigterm_interrupts
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE, read_trace
from gymqual.harness.stacks.device import exclusively
from gymqual.harness.stacks.environments import find_stack
from gymqual.trainer.grpo.progress import StepLines, StopAfter, progress_on
from gymqual.trainer.grpo.run_directory import Ended, save_adapter
from gymqual.trainer.grpo.trainer import GymTrainer, attach_audit, rows_per_pass
from gymqual.trainer.policy.loading import Policy, load_policy
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, read_config, write_config
from gymqual.trainer.runs.distributed import LOST, ProcessLost, Ranks, is_broken, joined, part
from gymqual.trainer.runs.errors import AuditError
from gymqual.trainer.runs.manifest import COMPLETED, INITIAL_ADAPTER, INTERRUPTED, TrainingRun
from gymqual.trainer.runs.open_gym import GymName, opened_gym

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "tokenizers", "numpy")
"""Whose versions a continuation must share."""


def prepare_policy(config: TrainingConfig) -> Policy:
    """Load and check the policy of a run; raises HarnessError if it, or the task core, is not the frozen one."""
    policy = load_policy(config.policy, dtype=torch.bfloat16 if config.precision == "bf16" else torch.float32)
    if config.policy_weights and config.policy_weights != policy.identity.weights:
        raise HarnessError(
            f"policy_weights: the run was prepared for {config.policy_weights[:16]}, {config.policy} has "
            f"{policy.identity.weights[:16]}; prepare a new run"
        )
    core = loaded.core_on_disk()
    if config.core and not loaded.same_core(config.core, core):
        raise HarnessError(f"core: the run was prepared for task core {config.core[:16]}, this is {core[:16]}")
    return policy


def train(
    config: TrainingConfig,
    folder: Path,
    gym_url: str | None,
    console: Console,
    *,
    resume: bool = False,
    stop_after: int | None = None,
) -> TrainingRun:
    """Run a training into ``folder``, which holds no other run; return its manifest, of a stopped run too.

    ``resume`` goes on in a folder that holds one, from its newest checkpoint; ``stop_after`` ends the run with a
    checkpoint after so many steps. Raises HarnessError for what is wrong before training begins, InfrastructureError
    for a gym that is not there. Under ``torchrun`` every process calls this, and gets the manifest that the first
    one writes; of a run that was stopped, the others get their own view, which is not on disk.
    """
    ranks = joined()
    rows_per_pass(config, ranks.count)
    going_on = ranks.once(lambda: _checkpoint(config, folder) if resume else _require_fresh(folder))
    tasks = GermanOrders()
    policy = prepare_policy(config)
    with (
        exclusively(device_name(), console.print) if ranks.is_first else nullcontext(),
        opened_gym(config.gym, gym_url, tasks, config.deadline_s, ranks) as gym,
    ):
        identity = gym.identity()
        here = _surroundings(config, policy, identity, ranks)
        checkpoints.require_alike(ranks.gather(here))

        def begin() -> None:
            if going_on is not None:
                checkpoints.require_same(going_on[1], here)
                checkpoints.cut_trace(folder / TRACE, going_on[1])
                (folder / MANIFEST).unlink(missing_ok=True)
            else:
                write_config(config, folder / CONFIG)

        ranks.once(begin)
        # Of all processes; each then samples with random numbers of its own.
        set_seed(config.seed)
        trainer = GymTrainer(config, policy, gym, tasks, folder / "trl")
        trainer.remove_callback(PrinterCallback)
        audit = attach_audit(trainer, config, folder / TRACE, goes_on=resume)
        if going_on is None:
            ranks.once(lambda: save_adapter(trainer.model, folder / INITIAL_ADAPTER))
        else:
            held = torch.load(checkpoints.part(going_on[0], checkpoints.AUDIT, ranks.rank), weights_only=True)
            audit.restore(read_trace(folder / TRACE), held)
        trainer.keep = lambda made: torch.save(audit.state(), checkpoints.part(made, checkpoints.AUDIT, ranks.rank))
        trainer.seal = lambda made: checkpoints.mark(made, trainer.state.global_step, here, folder / TRACE)
        started, cpu = time.monotonic(), time.process_time()
        with progress_on(console) as progress:
            trainer.add_callback(StepLines(audit, progress, config.steps))
            if stop_after is not None:
                trainer.add_callback(StopAfter(stop_after))
            outcome = _run(trainer, going_on[0] if going_on else None, ranks)
        seconds, cpu_s = time.monotonic() - started, time.process_time() - cpu
        audit.close()
        trainer.close_environments()
        if outcome == COMPLETED:
            # The first process ends the service that all of them use.
            ranks.wait()

    completed = outcome == COMPLETED
    if completed and len(audit.steps) < config.steps:
        outcome = f"stopped: as asked, after step {len(audit.steps)}"
    stack = find_stack(config.gym)
    deviations = (f"{config.gym}: {stack.deviation}",) if stack.deviation else ()
    ended = Ended(config, policy, identity, trainer, audit, outcome, seconds, cpu_s, deviations)
    if completed:
        return ranks.once(lambda: ended.leave(folder))
    return ended.leave(folder) if ranks.is_first else ended.manifest(None)


def _checkpoint(config: TrainingConfig, folder: Path) -> tuple[Path, checkpoints.Mark]:
    if (folder / MANIFEST).is_file() and run_manifest.read(folder).outcome == COMPLETED:
        raise HarnessError(f"{folder} is complete, there is nothing to go on with; prepare a new run")
    return checkpoints.newest(folder, config.steps)


def _surroundings(
    config: TrainingConfig, policy: Policy, identity: GymIdentity, ranks: Ranks
) -> checkpoints.Surroundings:
    return checkpoints.Surroundings(
        config=config.model_dump(mode="json"),
        policy=policy.identity.digest,
        core=loaded.core_on_disk(),
        gym=identity.digest,
        versions={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        threads=torch.get_num_threads(),
        processes=ranks.count,
        device=device_name(),
    )


def device_name() -> str:
    """Return what trains: the accelerator's name, or the processor's kind."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu {platform.machine()}"


def _run(trainer: GymTrainer, checkpoint: Path | None, ranks: Ranks) -> str:
    try:
        outcome = _train(trainer, checkpoint, ranks)
    except KeyboardInterrupt:
        # torchrun ends the others, too, once one of them has ended, as it does when it is interrupted itself.
        unknown = INTERRUPTED if ranks.count == 1 else f"{INTERRUPTED}, or another process of the training ended"
        outcome = ranks.left() or unknown
    if ranks.count > 1 and threading.current_thread() is threading.main_thread():
        # And it may be about to: what is left to be written takes a moment.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return outcome


def _train(trainer: GymTrainer, checkpoint: Path | None, ranks: Ranks) -> str:
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (AuditError, InfrastructureError) as error:
        reason = f"stopped: {error}"
        if not ranks.is_first:
            ranks.leave(reason)
        return reason
    except ProcessLost:
        return ranks.left() or LOST
    except RuntimeError as error:
        if ranks.count == 1 or not is_broken(error):
            raise
        return ranks.left() or LOST
    return COMPLETED


def _require_fresh(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if path.name != CONFIG)
    if others:
        raise HarnessError(f"--out {folder} holds {others[0]}; name a folder that holds no run")


# ---- the command ------------------------------------------------------------------------------------------


def command(
    config: Annotated[Path, Parameter(name="CONFIG", help="A training.json, see gymqual prepare.")],
    /,
    *,
    gym: Annotated[GymName | None, Parameter(help="Instead of the one in CONFIG.")] = None,
    gym_url: Annotated[
        str | None, Parameter(help="A service that is already served, with the identity it tells; else one is started.")
    ] = None,
    policy: Annotated[str | None, Parameter(help="A name or a directory instead of the policy in CONFIG.")] = None,
    out: Annotated[Path | None, Parameter(help="Run directory; CONFIG's folder without it.")] = None,
    resume: Annotated[bool, Parameter(help="Resume from the run directory's newest checkpoint.")] = False,
    stop_after: Annotated[int | None, Parameter(help="End with a checkpoint after this step.")] = None,
    threads: Annotated[int, Parameter(help="Threads of torch.")] = 1,
    dry_run: Annotated[bool, Parameter(help="Check inputs, policy and gym; no inference.")] = False,
) -> int:
    """Train by a frozen configuration, audited to the token; returns 1 if the gym or the audit stopped it."""
    first = os.environ.get("RANK", "0") == "0"
    console = Console(highlight=False, soft_wrap=True, quiet=not first)
    chosen = _with_choices(read_config(config), gym, policy)
    require_at_least_one("--threads", threads)
    if stop_after is not None:
        require_at_least_one("--stop-after", stop_after)
    # Sums of floats depend on how they are split over threads.
    torch.set_num_threads(threads)
    if dry_run:
        _dry_run(chosen, gym_url, console)
        return 0
    with sigterm_interrupts():
        run = train(chosen, out or config.parent, gym_url, console, resume=resume, stop_after=stop_after)
    part()
    if run.outcome != COMPLETED:
        print(f"gymqual train: {run.outcome}", file=sys.stderr)
        return 1
    assert run.tensors is not None
    console.print(
        f"completed: {len(run.steps)} steps, {run.varied_groups} varied groups, {run.tensors.changed} of "
        f"{run.tensors.trainable} tensors changed, {run.tokens.sampled} sampled tokens trained and "
        f"{run.tokens.external} others excluded; generation {run.config.generation}; strict training success "
        f"{run.strict_training_success:.3f} ({run.scores_are})"
    )
    return 0


def _with_choices(config: TrainingConfig, gym: str | None, policy: str | None) -> TrainingConfig:
    chosen = {name: value for name, value in (("gym", gym), ("policy", policy)) if value}
    if policy and policy != config.policy:
        # The frozen digest is that of another policy.
        chosen["policy_weights"] = ""
    try:
        return TrainingConfig.model_validate({**config.model_dump(), **chosen})
    except ValidationError as error:
        raise HarnessError(str(error.errors()[0]["msg"])) from None


def _dry_run(config: TrainingConfig, gym_url: str | None, console: Console) -> None:
    """Check inputs, policy and the gym's live identity, without inference."""
    policy = prepare_policy(config)
    console.print(
        f"policy {policy.identity.name}, {policy.identity.architecture}, weights {policy.identity.weights[:16]}"
    )
    for note in policy.notes:
        console.print(f"note: {note}")
    with opened_gym(config.gym, gym_url, GermanOrders(), config.deadline_s) as gym:
        identity = gym.identity()
    console.print(f"gym {identity.upstream} on {identity.python}, core {identity.core[:16]}")
    console.print(f"{config.steps} steps of {config.groups_per_step} x {config.group_size} rollouts; nothing was run")
