"""Train a policy through a gym, audited to the token, and leave a run directory that others can verify.

    python -m trainer.prepare RUN_DIR
    python -m trainer.gym_training RUN_DIR/training.json [--gym nemo|openenv] [--gym-url URL] [--policy P] [--dry-run]

Without ``--gym-url`` the gym's service is started and owned here; with it, its live identity is agreed on. Whatever
breaks in the gym, or does not hold in the audit, ends the run before the optimizer step that would use it; what was
finished until then is on disk, the manifest says why the run stopped, and the exit code is 1.
"""

import argparse
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PrinterCallback, TrainerCallback, set_seed

from gyms import loaded
from gyms.base import GymIdentity, InfrastructureError
from gyms.german_orders import GermanOrders
from harness.device import exclusively
from harness.errors import HarnessError
from harness.files import readable_json, write_atomically
from harness.manifest import MANIFEST
from harness.stacks import find_stack
from harness.trace import LEGEND, TRACE, read_trace
from harness.usage import ending
from trainer import checkpoints, legend, run_manifest
from trainer.accelerator import describe
from trainer.audit import Audit
from trainer.config import CONFIG, TrainingConfig, read_config, write_config
from trainer.errors import AuditError
from trainer.grpo import SHAPED, STRICT, GymTrainer, attach_audit, rows_per_pass
from trainer.opening import GYMS, opened_gym
from trainer.policy import Policy, load_policy
from trainer.ranks import LOST, ProcessLost, Ranks, is_broken, joined, part
from trainer.run_manifest import ADAPTER, COMPLETED, INITIAL_ADAPTER, INTERRUPTED, TrainingRun
from trainer.tensors import compare_tensors, load_adapter

PROBE = "probe.json"
"""Log-probabilities of one rollout by the trained policy, for whoever loads the adapter."""
TIMINGS = "timings.json"
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
    if config.core and config.core != core:
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
        model: Any = trainer.model
        if going_on is None:
            ranks.once(lambda: _save(model, folder / INITIAL_ADAPTER))
        else:
            held = torch.load(checkpoints.part(going_on[0], checkpoints.AUDIT, ranks.rank), weights_only=True)
            audit.restore(read_trace(folder / TRACE), held)
        trainer.keep = lambda made: torch.save(audit.state(), checkpoints.part(made, checkpoints.AUDIT, ranks.rank))
        trainer.seal = lambda made: checkpoints.mark(made, trainer.state.global_step, here, folder / TRACE)
        started, cpu = time.monotonic(), time.process_time()
        with _progress(console) as progress:
            trainer.add_callback(_StepLines(audit, progress, config.steps))
            if stop_after is not None:
                trainer.add_callback(_StopAfter(stop_after))
            outcome = _run(trainer, going_on[0] if going_on else None, ranks)
        seconds = {"training_s": time.monotonic() - started, "cpu_s": time.process_time() - cpu}
        audit.close()
        trainer.close_environments()
        if outcome == COMPLETED:
            # The first process ends the service that all of them use.
            ranks.wait()

    def finish() -> TrainingRun:
        ended = outcome
        if ended == COMPLETED and len(audit.steps) < config.steps:
            ended = f"stopped: as asked, after step {len(audit.steps)}"
        if ended == COMPLETED:
            _save(model, folder / ADAPTER)
            write_atomically(folder / PROBE, readable_json(_probe(trainer, audit)))
        timings = {name: round(value, 3) for name, value in seconds.items()} | trainer.sampler.counts
        write_atomically(folder / TIMINGS, readable_json(timings))
        told = legend.of_run(folder / TRACE, policy.tokenizer)
        write_atomically(folder / LEGEND, readable_json(told.model_dump(mode="json")))
        write_atomically(folder / "README.md", _card(config, ended, policy).encode())
        run = _manifest(config, folder, ended, policy, identity, audit, trainer, seconds["training_s"])
        run_manifest.write(run, folder)
        return run

    if outcome == COMPLETED:
        return ranks.once(finish)
    if ranks.is_first:
        return finish()
    return _manifest(config, None, outcome, policy, identity, audit, trainer, seconds["training_s"])


def _save(model: Any, folder: Path) -> None:
    with checkpoints.writing(folder):
        model.save_pretrained(folder)


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


@torch.no_grad()
def _probe(trainer: GymTrainer, audit: Audit) -> dict[str, Any]:
    """Return one rollout's ids and their log-probabilities by the trained policy."""
    row = next(iter(audit.rollouts.values()))
    ids = torch.tensor([row.prompt + row.completion], device=trainer.accelerator.device)
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])
    return {"ids": ids[0].tolist(), "logprobs": logprobs.squeeze(1).tolist()}


def _manifest(
    config: TrainingConfig,
    folder: Path | None,
    outcome: str,
    policy: Policy,
    identity: GymIdentity,
    audit: Audit,
    trainer: GymTrainer,
    seconds: float,
) -> TrainingRun:
    rows, played = list(audit.rollouts.values()), audit.generation
    shaped = [row.rewards[SHAPED] for row in rows if row.rewards[SHAPED] is not None]
    stack = find_stack(config.gym)
    return TrainingRun(
        outcome=outcome,
        config=config,
        policy=run_manifest.PolicyRecord(**policy.identity.to_json()),
        gym=run_manifest.GymRecord(**identity.to_json()),
        core=loaded.core_on_disk(),
        consumed_tasks=played.consumed,
        tokens=run_manifest.TokenTotals(**audit.tokens),
        replay=run_manifest.ReplayTotals(
            episodes=audit.generation.episodes, observations=audit.generation.observations, disagreements=0
        ),
        tensors=_tensor_totals(folder, audit) if folder and outcome == COMPLETED else None,
        steps=tuple(run_manifest.step_record(step) for step in audit.steps),
        strict_training_success=_mean([row.rewards[STRICT] or 0.0 for row in rows]),
        mean_shaped_reward=_mean([value for value in shaped if value is not None]),
        varied_groups=sum(step.varied_groups for step in audit.steps),
        deviations=(*([f"{config.gym}: {stack.deviation}"] if stack.deviation else []), *policy.notes),
        seconds=round(seconds, 3),
        processes=audit.objective.processes,
        device=str(describe(torch.cuda.current_device())) if trainer.accelerator.device.type == "cuda" else "cpu",
        files=run_manifest.list_files(folder) if folder else {},
    )


def _tensor_totals(folder: Path, audit: Audit) -> run_manifest.TensorTotals:
    change = compare_tensors(load_adapter(folder / INITIAL_ADAPTER), load_adapter(folder / ADAPTER))
    with_gradient = {name for step in audit.steps for name, present in step.gradients.items() if present}
    return run_manifest.TensorTotals(
        trainable=len(change.changed) + len(change.unchanged),
        changed=len(change.changed),
        with_gradient=len(with_gradient),
        unchanged=change.unchanged,
        elements_changed=change.elements_changed,
        update_ratio=change.update_ratio,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _require_fresh(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if path.name != CONFIG)
    if others:
        raise HarnessError(f"--out {folder} holds {others[0]}; name a folder that holds no run")


class _StopAfter(TrainerCallback):
    """Ends a run early, and with a checkpoint; the schedule stays that of all its steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step >= self._step:
            control.should_save = control.should_training_stop = True


class _StepLines(TrainerCallback):
    """A line and a tick of the bar for every optimizer step."""

    def __init__(self, audit: Audit, progress: Progress, steps: int) -> None:
        self._audit = audit
        self._progress = progress
        self._bar = progress.add_task("training", total=steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        step = self._audit.steps[-1]
        line = f"step {step.step}: strict {step.strict:.2f}, reward {step.reward or 0.0:.3f}"
        line += f", gradient {step.gradient_norm:.3g}, gap {step.logprob_gap_max or 0.0:.1e}"
        self._progress.console.print(line + (f", {step.nothing_to_learn}" if step.nothing_to_learn else ""))
        self._progress.advance(self._bar)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _card(config: TrainingConfig, outcome: str, policy: Policy) -> str:
    return f"""# Adapter of a qualification run

LoRA on `{policy.identity.name}` ({policy.identity.weights[:16]}), {config.steps} GRPO steps of {config.groups_per_step}
group(s) of {config.group_size} through the {config.gym} gym, seed {config.seed}, generation {config.generation}:
{outcome}.

It shows that the training stack did what it says on a synthetic development task. It is no model to be used, its
training success is not a held-out score, and nothing here says how the policy would do on anything else.
`python -m trainer.replay_audit .` derives every claim of `manifest.json` again.
"""


# ---- the command ------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 completed, 1 stopped, 2 it could not be begun."""
    options = _parser().parse_args(arguments)
    first = os.environ.get("RANK", "0") == "0"
    console = Console(highlight=False, soft_wrap=True, quiet=not first)
    try:
        config = _config(options)
        if options.threads < 1:
            raise HarnessError(f"--threads {options.threads} must be at least 1")
        if options.stop_after is not None and options.stop_after < 1:
            raise HarnessError(f"--stop-after {options.stop_after} must be at least 1")
        # Sums of floats depend on how they are split over threads.
        torch.set_num_threads(options.threads)
        if options.dry_run:
            _dry_run(config, options.gym_url, console)
            return 0
        folder = options.out or options.config.parent
        with sigterm_interrupts():
            run = train(config, folder, options.gym_url, console, resume=options.resume, stop_after=options.stop_after)
        part()
    except (HarnessError, InfrastructureError, AuditError, OSError) as error:
        print(f"gym_training: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gym_training: interrupted before training began; nothing was written", file=sys.stderr)
        return 130
    if run.outcome != COMPLETED:
        print(f"gym_training: {run.outcome}", file=sys.stderr)
        return 1
    assert run.tensors is not None
    console.print(
        f"completed: {len(run.steps)} steps, {run.varied_groups} varied groups, {run.tensors.changed} of "
        f"{run.tensors.trainable} tensors changed, {run.tokens.sampled} sampled tokens trained and "
        f"{run.tokens.external} others excluded; generation {run.config.generation}; strict training success "
        f"{run.strict_training_success:.3f} ({run.scores_are})"
    )
    return 0


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: what was finished is kept, and the gym's service is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _config(options: argparse.Namespace) -> TrainingConfig:
    config = read_config(options.config)
    chosen = {name: getattr(options, name) for name in ("gym", "policy") if getattr(options, name)}
    if options.policy and options.policy != config.policy:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.gym_training",
        description=__doc__,
        epilog=ending(
            "trainer.gym_training RUN_DIR/training.json",
            {0: "completed", 1: "stopped by the gym or the audit; the manifest says why", 130: "interrupted"},
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a training.json, see python -m trainer.prepare")
    parser.add_argument("--gym", choices=GYMS, help="instead of the one in CONFIG (default: that one)")
    parser.add_argument(
        "--gym-url",
        metavar="URL",
        help="a service that is already served, with the identity it tells (default: one is started here)",
    )
    parser.add_argument("--policy", help="a name or a directory instead of the policy in CONFIG (default: that one)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: CONFIG's folder)")
    parser.add_argument("--resume", action="store_true", help="go on from the run directory's newest checkpoint")
    parser.add_argument(
        "--stop-after",
        type=int,
        metavar="STEP",
        help="end with a checkpoint after this step (default: it goes on)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="check inputs, policy and gym; no inference")
    return parser


if __name__ == "__main__":
    sys.exit(main())
