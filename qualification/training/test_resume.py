"""Exact resume: a run that is stopped and goes on leaves the very bytes of one that was never stopped.

The trace holds prompts, sampled ids, log-probabilities, rewards, gradients' norms and the digest of the weights at each
step, so that two equal traces are two equal runs; adapter and optimizer are compared as well.
"""

import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from gymqual.gyms.launch import SECRET_VARIABLE
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.divergence import first_difference
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE
from gymqual.qualification.support.training.qualified import qualification_config, require_device, served
from gymqual.qualification.support.training.small_run import train_locally
from gymqual.qualification.support.training.warm import WarmCommand
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.replay import audit
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, training_config, write_config
from gymqual.trainer.runs.divergence import differences
from gymqual.trainer.runs.errors import AuditError
from gymqual.trainer.runs.manifest import COMPLETED

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

STEPS = 6
POOL = tuple(f"v1/train/43/{index}" for index in range(16))
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "at the first step": (1, {}),
    "between the two steps of a batch": (3, {"num_iterations": 2}),
    "with two passes a step": (2, {"gradient_accumulation": 2, "groups_per_step": 2}),
    "between steps of a batch, KL term, shaping": (
        5,
        {"num_iterations": 3, "gradient_accumulation": 2, "beta": 0.04, "shaping": {"strict": 0.5, "lookup": 0.2}},
    ),
    "within a batch of two steps": (1, {"steps_per_generation": 4, "gradient_accumulation": 2}),
    "with a cache over turns": (3, {"generation": "cached", "num_iterations": 2, "groups_per_step": 2}),
    "at the end of an epoch": (3, {"tasks": POOL[:3], "repeat_pool": True, "shuffle": True}),
    "in the second epoch": (5, {"tasks": POOL[:4], "repeat_pool": True, "shuffle": True, "groups_per_step": 1}),
}
"""Where a run is stopped, and what it is set to."""


def config_of(**settings: Any) -> TrainingConfig:
    made = training_config("mini4", load_policy("mini4").identity.weights, "nemo", 43, STEPS)
    return TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), "checkpoint_every": 1, **settings})


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.cpu_qualification),
        pytest.param("cuda", marks=pytest.mark.gpu_qualification),
    ],
)
@check("TRAIN-11", broken="the_buffer_is_lost")
def test_a_continued_run_is_the_uninterrupted_one(device: str, tmp_path: Path, evidence: Evidence) -> None:
    """A run that is stopped and goes on MUST leave the trace, adapter and optimizer of one that was not, to the bit."""
    require_device(device)
    seen: dict[str, object] = {}
    for name, (stop, settings) in CASES.items():
        precision = "bf16" if device == "cuda" else "fp32"
        config, whole, part = (
            config_of(precision=precision, **settings),
            tmp_path / name / "whole",
            tmp_path / name / "part",
        )
        train_locally(config, whole)
        train_locally(config, part, stop_after=stop)
        try:
            seen[name] = (train_locally(config, part, resume=True).outcome, differences(whole, part, STEPS))
        except (AuditError, HarnessError, OSError) as error:
            seen[name] = str(error)
    expected = dict.fromkeys(CASES, (COMPLETED, []))
    evidence.measure(seen=seen)
    assert seen == expected, explain(
        subject="(outcome, differences) of a continued run by where it was stopped",
        expected=expected,
        got=seen,
        cause="something that the next step depends on is not in the checkpoint",
    )


KILLS: list[tuple[str, signal.Signals, int, dict[str, Any]]] = [
    ("nemo", signal.SIGKILL, 2, {"num_iterations": 2}),
    ("openenv", signal.SIGTERM, 3, {"gradient_accumulation": 2}),
]


@pytest.mark.cpu_qualification
@pytest.mark.parametrize(
    ("gym", "number", "step", "settings"), [pytest.param(*kill, marks=pytest.mark.gym(kill[0])) for kill in KILLS]
)
def test_a_killed_process_is_continued_by_another(
    gym: str, number: signal.Signals, step: int, settings: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training process that is killed MUST be continued by another to the uninterrupted run's bytes, and audited."""
    name = f"resume-{gym}-{signal.Signals(number).name}"
    folders = [run.folder / "training" / run.mine(f"{name}-{part}") for part in ("whole", "part")]
    config = qualification_config(gym, "mini4", steps=STEPS, checkpoint_every=1, **settings)
    with served(gym, run, name) as service:
        for folder in folders:
            folder.mkdir(parents=True)
            write_config(config, folder / CONFIG)
        command = partial(WarmCommand, "train", "--gym-url", service.server.url, **{SECRET_VARIABLE: service.secret})
        codes = [_ended(command, folders[0]), _killed(command, folders[1], number, step)]
        codes.append(_ended(partial(command, "--resume"), folders[1]))
    broken = audit.audit(folders[1]).broken
    seen = (codes[0], codes[2], differences(folders[0], folders[1], STEPS), broken)
    assert seen == (0, 0, [], False), explain(
        subject=f"exit codes whole and continued, differences, and whether the replay is broken (killed: {codes[1]})",
        expected=(0, 0, [], False),
        got=seen,
        cause="a checkpoint is half-written, or what was recorded after it is kept",
    )


def _ended(command: Callable[..., WarmCommand], folder: Path) -> int:
    with command(folder / CONFIG) as process:
        return process.wait()


def _killed(command: Callable[..., WarmCommand], folder: Path, number: signal.Signals, step: int) -> int:
    """Start a training and kill it once it has the checkpoint of a step; return how it ended."""
    with command(folder / CONFIG) as process:
        until = time.monotonic() + 240
        while not checkpoints.folder_of(folder, step).is_dir():
            assert process.poll() is None, f"the training ended by itself with {process.poll()}"
            assert time.monotonic() < until, f"no checkpoint of step {step} within 240 s"
            time.sleep(0.02)
        process.send_signal(number)
        return process.wait(60)


@pytest.mark.self_test
def test_a_run_that_was_killed_after_its_last_step_is_completed(tmp_path: Path) -> None:
    """A run that has all its steps and no manifest MUST be completed to the bytes of one that was not killed."""
    config = config_of()
    for name in ("whole", "part"):
        train_locally(config, tmp_path / name)
    (tmp_path / "part" / MANIFEST).unlink()
    outcome = train_locally(config, tmp_path / "part", resume=True).outcome
    differing = differences(tmp_path / "whole", tmp_path / "part", STEPS)
    assert (outcome, differing) == (COMPLETED, []), explain(
        subject="outcome and differences of a run whose last step was taken again",
        expected=(COMPLETED, []),
        got=(outcome, differing),
        cause="a run goes on behind its last step",
    )


@pytest.mark.self_test
def test_a_disk_that_is_full_mid_save_loses_nothing(tmp_path: Path) -> None:
    """A checkpoint that cannot be written MUST end the run with one sentence; with room again it goes on exactly."""
    config, (whole, part) = config_of(), (tmp_path / "whole", tmp_path / "part")
    train_locally(config, whole)
    train_locally(config, part, stop_after=2)
    room = (checkpoints.folder_of(part, 2) / "optimizer.pt").stat().st_size - 1
    with files_no_larger_than(room), pytest.raises(HarnessError) as refused:
        train_locally(config, part, resume=True)
    kept = sorted(path.name for path in (part / checkpoints.FOLDER).iterdir())
    outcome = train_locally(config, part, resume=True).outcome
    seen = ("step-00003 cannot be written" in str(refused.value), kept, outcome, differences(whole, part, STEPS))
    assert seen == (True, ["step-00001", "step-00002"], COMPLETED, []), explain(
        subject="(named, checkpoints kept, outcome with room again, differences)",
        expected=(True, ["step-00001", "step-00002"], COMPLETED, []),
        got=(str(refused.value), *seen[1:]),
        cause="half a checkpoint is left in the place of a whole one",
    )


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let the operating system refuse to write more of any file, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- controls: what breaks exactness is seen, and refused where it can be known before --------------------------


class _ForeignDraw(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step:
            self._drawn = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if not getattr(self, "_drawn", True):
            self._drawn = True
            torch.rand(1)


def _restart_the_sampler(patch: pytest.MonkeyPatch) -> None:
    init = GymTrainer.__init__

    def restarted(self: GymTrainer, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.args.ignore_data_skip = True

    patch.setattr(GymTrainer, "__init__", restarted)


def _lose_the_buffer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "load_buffer", lambda trainer, folder: None)


def _draw_elsewhere(patch: pytest.MonkeyPatch) -> None:
    init = GymTrainer.__init__

    def drawing(self: GymTrainer, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.add_callback(_ForeignDraw())

    patch.setattr(GymTrainer, "__init__", drawing)


def _forget_the_optimizer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GymTrainer, "_load_optimizer_and_scheduler", lambda self, checkpoint: None)


CONTROLS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "the sampler is restarted": (_restart_the_sampler, "stopped: data: "),
    "the buffer is lost": (_lose_the_buffer, "stopped: rows: trained 1 times, 2 are due"),
    "the optimizer is forgotten": (_forget_the_optimizer, "stopped: update: "),
    "a foreign draw": (_draw_elsewhere, "step 4: call, rollout 1"),
}


@pytest.mark.self_test
@pytest.mark.parametrize("control", CONTROLS)
def test_a_continuation_that_is_not_exact_is_told(
    control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A continuation that differs MUST be stopped by the audit, or told by its first step, rollout, turn and token."""
    spoil, due = CONTROLS[control]
    config = config_of(num_iterations=2 if "buffer" in control else 1)
    train_locally(config, tmp_path / "whole")
    train_locally(config, tmp_path / "part", stop_after=3)
    with monkeypatch.context() as patch:
        spoil(patch)
        outcome = train_locally(config, tmp_path / "part", resume=True).outcome
    told = (
        outcome
        if outcome != COMPLETED
        else str(first_difference(tmp_path / "whole" / TRACE, tmp_path / "part" / TRACE))
    )
    assert due in told, explain(
        subject=f"what is said of a continuation where {control}",
        expected=due,
        got=told,
        cause="the two halves are only asked to have ended",
    )


def _other_threads(run: Path, config: TrainingConfig) -> TrainingConfig:
    torch.set_num_threads(2)
    return config


def _other_config(run: Path, config: TrainingConfig) -> TrainingConfig:
    return config.model_copy(update={"learning_rate": 1e-4})


def _fewer_steps(run: Path, config: TrainingConfig) -> TrainingConfig:
    return config.model_copy(update={"steps": STEPS - 1})


def _changed_file(run: Path, config: TrainingConfig) -> TrainingConfig:
    path = checkpoints.folder_of(run, 2) / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return config


def _unmarked(run: Path, config: TrainingConfig) -> TrainingConfig:
    (checkpoints.folder_of(run, 2) / checkpoints.MARK).unlink()
    return config


def _short_trace(run: Path, config: TrainingConfig) -> TrainingConfig:
    (run / TRACE).write_bytes((run / TRACE).read_bytes()[:100])
    return config


def _completed(run: Path, config: TrainingConfig) -> TrainingConfig:
    train_locally(config, run, resume=True)
    return config


def _other_trace(run: Path, config: TrainingConfig) -> TrainingConfig:
    content = bytearray((run / TRACE).read_bytes())
    content[len(content) // 3] ^= 1
    (run / TRACE).write_bytes(content)
    return config


def _marked(**changed: Any) -> Callable[[Path, TrainingConfig], TrainingConfig]:
    """Let the checkpoint say that it was made in other surroundings."""

    def spoil(run: Path, config: TrainingConfig) -> TrainingConfig:
        path = checkpoints.folder_of(run, 2) / checkpoints.MARK
        mark = json.loads(path.read_bytes())
        for name, value in changed.items():
            before = mark["surroundings"][name]
            mark["surroundings"][name] = {**before, **value} if isinstance(value, dict) else value
        path.write_bytes(readable_json(mark))
        return config

    return spoil


def _no_checkpoint(run: Path, config: TrainingConfig) -> TrainingConfig:
    for step in (1, 2):
        checkpoints.folder_of(run, step).rename(run / f"elsewhere-{step}")
    return config


REFUSED: dict[str, tuple[Callable[[Path, TrainingConfig], TrainingConfig], str]] = {
    "another number of threads": (_other_threads, "threads was 1, is 2"),
    "another learning rate": (_other_config, "learning_rate was 0.0005, is 0.0001"),
    "a smaller number of steps": (_fewer_steps, "steps was 6, is 5"),
    "a changed file": (_changed_file, "optimizer.pt is not what was saved"),
    "an unfinished checkpoint": (_unmarked, "checkpoint.json cannot be read"),
    "a trace that ends before": (_short_trace, "has 100 bytes, step 2 was reached after"),
    "a trace that was changed": (_other_trace, "is not the one that step 2 was reached with"),
    "a run that is complete": (_completed, "is complete, there is nothing to go on with"),
    "another number of processes": (_marked(processes=2), "processes was 2, is 1"),
    "another library": (_marked(versions={"torch": "0.1"}), "torch was 0.1, is "),
    "another gym": (_marked(gym="0" * 64), "gym was 0000"),
    "another task core": (_marked(core="0" * 64), "core was 0000"),
    "another policy": (_marked(policy="0" * 64), "policy was 0000"),
    "another device": (_marked(device="an abacus"), "device was an abacus, is "),
    "no checkpoint": (_no_checkpoint, "has no checkpoint to go on from"),
}


@pytest.mark.self_test
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_continued_exactly_is_refused(case: str, tmp_path: Path) -> None:
    """A checkpoint that cannot be gone on from exactly MUST be refused with the reason, and nothing be overwritten."""
    spoil, due = REFUSED[case]
    config = config_of()
    train_locally(config, tmp_path / "run", stop_after=2)
    changed = spoil(tmp_path / "run", config)
    before = run_manifest.list_files(tmp_path / "run")
    said = "it went on"
    try:
        train_locally(changed, tmp_path / "run", resume=True)
    except HarnessError as error:
        said = str(error)
    finally:
        torch.set_num_threads(1)
    kept = run_manifest.list_files(tmp_path / "run") == before
    assert (due in said, kept) == (True, True), explain(
        subject=f"a continuation with {case}; whether its files were left as they were",
        expected=(due, True),
        got=(said, kept),
        cause="a continuation begins before it is known to be one",
    )
