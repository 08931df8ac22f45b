"""Several processes: torchrun's processes train one policy on one batch, and stop together."""

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.errors import HarnessError
from gymqual.qualification.broken.processes import DEFECTS, main
from gymqual.qualification.support.training.processes import torchrun_itself
from gymqual.qualification.support.training.warm import run_warm
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.replay import audit
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.checkpoints import Surroundings, require_alike
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, training_config, write_config
from gymqual.trainer.runs.divergence import differences
from gymqual.trainer.runs.manifest import COMPLETED, MANIFEST

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

STEPS = 4
POOL = tuple(f"v1/train/43/{index}" for index in range(2))
SLOW = pytest.mark.slow
QUICK = ("nothing", "gradients_stay_apart", "one_process_loses_its_gym")
"""Of the defects; each takes seconds, as two processes load torch."""
CASES: dict[str, dict[str, Any]] = {
    "within a batch of two steps": {"steps_per_generation": 2, "groups_per_step": 2},
    "in the second epoch": {"tasks": POOL, "repeat_pool": True, "shuffle": True},
}
"""Where a run is when it is stopped after three steps."""


def torchrun(defect: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Train in two processes under torchrun's agent, with a defect planted in them."""
    return run_warm(*arguments, processes=2, entry=partial(main, defect))


def prepared(folder: Path, policy: str = "mini4", **settings: Any) -> Path:
    """Write the configuration of a run whose group of four is spread over two processes; return its path."""
    made = training_config(policy, load_policy(policy).identity.weights, "nemo", 43, STEPS)
    config = TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), "oracle_steps": "every", **settings})
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, folder / CONFIG)
    return folder / CONFIG


@pytest.mark.parametrize("defect", [pytest.param(name, marks=() if name in QUICK else SLOW) for name in DEFECTS])
def test_what_goes_wrong_in_one_process_stops_all(defect: str, tmp_path: Path) -> None:
    """A fault of one process MUST end all of them with its reason in the manifest; without one, all complete."""
    ended = torchrun(defect, prepared(tmp_path))
    outcome = run_manifest.read(tmp_path).outcome if (tmp_path / MANIFEST).is_file() else ended.stderr[-2000:]
    reason = DEFECTS[defect][1]
    seen, expected = (reason in outcome, ended.returncode == 0), (True, defect == "nothing")
    assert seen == expected, explain(
        subject=f"(outcome, exit code is 0) with {defect}",
        expected=(reason, defect == "nothing"),
        got=(outcome, ended.returncode),
        cause="the processes do not tell each other why they end",
    )


def test_no_process_takes_a_step_that_another_refuses(tmp_path: Path) -> None:
    """A step that one process refuses MUST be taken by none: here the third, the first that has a gradient."""
    ended = torchrun("one_gradient_is_clipped_otherwise", prepared(tmp_path))
    seen = [ended.stderr.count(f"process {rank} takes a step") for rank in range(2)]
    assert seen == [2, 2], explain(
        subject="steps taken by each process, of which the second refuses the third",
        expected=[2, 2],
        got=seen,
        cause="the processes do not wait for each other before the optimizer's step",
    )


def test_one_process_derives_what_two_trained(tmp_path: Path) -> None:
    """Gradients and weights of two processes MUST be those of one on the same rollouts, and all else MUST be held."""
    ended = torchrun("nothing", prepared(tmp_path, groups_per_step=2, gradient_accumulation=2))
    broken = [line for line in audit.audit(tmp_path).lines if line.startswith("BROKEN")]
    seen = (ended.returncode, run_manifest.read(tmp_path).processes, broken)
    assert seen == (0, 2, []), explain(
        subject="(exit code, processes, claims that one process does not derive)",
        expected=(0, 2, []),
        got=seen,
        cause="gradients are not averaged, or the evidence of one process is missing",
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_go_on_exactly(case: str, tmp_path: Path) -> None:
    """A run of two processes that is stopped and goes on MUST leave the bytes of one that was not."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    settings = {"checkpoint_every": 1, **CASES[case]}
    ended = [torchrun("nothing", prepared(whole, **settings)).returncode]
    torchrun("nothing", prepared(part, **settings), "--stop-after", "3")
    ended.append(torchrun("nothing", part / CONFIG, "--resume").returncode)
    seen = (ended, differences(whole, part, STEPS))
    assert seen == ([0, 0], []), explain(
        subject=f"(exit codes, differences) of a continued run of two processes, {case}",
        expected=([0, 0], []),
        got=seen,
        cause="a process's random numbers, rollouts or audit are not in the checkpoint",
    )


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    """A run MUST NOT be continued by another number of processes than has begun it."""
    torchrun("nothing", prepared(tmp_path, checkpoint_every=1), "--stop-after", "1")
    alone = run_warm("train", tmp_path / CONFIG, "--resume")
    seen = (alone.returncode, "processes was 2, is 1" in alone.stderr.splitlines()[-1])
    assert seen == (2, True), explain(
        subject="(exit code, both numbers named) of one process that goes on where two were",
        expected=(2, True),
        got=(alone.returncode, alone.stderr[-500:]),
        cause="the number of processes is not part of what a checkpoint depends on",
    )


def test_a_step_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    """Rollouts that are no equal parts MUST be refused by every process, in one line, before anything is written."""
    ended = torchrun("nothing", prepared(tmp_path, group_size=3))
    said = [line for line in ended.stderr.splitlines() if line.startswith("gymqual train: ")]
    seen = (ended.returncode, len(said), all("change groups_per_step" in line for line in said), _names(tmp_path))
    assert seen == (1, 2, True, [CONFIG]), explain(
        subject="(exit code, lines, fix named in each, files) of three rollouts in two processes",
        expected=(1, 2, True, [CONFIG]),
        got=(*seen, ended.stderr[-500:]),
        cause="a step is split before it is known to be equal parts",
    )


@pytest.mark.slow
@pytest.mark.gym("nemo")
def test_a_qualification_in_two_processes(run: Run, tmp_path: Path) -> None:
    """Two processes MUST train mini through one NeMo service, share its sessions, and be replayed by one process."""
    run.stack("nemo")
    ended = torchrun_itself("-m", "gymqual", "train", prepared(tmp_path, "mini", steps=8, checkpoint_every=4))
    broken = [line for line in audit.audit(tmp_path).lines if line.startswith("BROKEN")]
    made = run_manifest.read(tmp_path)
    seen = (ended.returncode, made.outcome, made.processes, made.tensors and made.tensors.changed, broken)
    assert seen == (0, COMPLETED, 2, 392, []), explain(
        subject="(exit code, outcome, processes, tensors changed, claims that are not derived)",
        expected=(0, COMPLETED, 2, 392, []),
        got=(*seen, ended.stderr[-1000:]),
        cause="the processes do not share the service that the first one starts",
    )


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_processes_of_other_surroundings_do_not_train_together() -> None:
    """Processes with another library, device or gym MUST be refused by number and by what differs."""
    first = Surroundings(
        config={}, policy="0" * 64, core="0" * 64, gym="0" * 64, versions={"torch": "2.13.0"}, threads=1, processes=2,
        device="cpu x86_64",
    )  # fmt: skip
    with pytest.raises(HarnessError) as refused:
        require_alike([first, first.model_copy(update={"versions": {"torch": "2.12.0"}})])
    assert str(refused.value) == "process 1 cannot train with process 0: torch was 2.13.0, is 2.12.0", explain(
        subject="processes with different libraries",
        expected="process 1, torch, both versions",
        got=str(refused.value),
        cause="the processes do not compare what they run on",
    )
