"""Several processes: torchrun's processes train one policy on one batch, and stop together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.checks import explain
from harness.files import ROOT
from qualification.broken.processes import DEFECTS
from qualification.training.processes import torchrun
from trainer import replay_audit, run_manifest
from trainer.config import CONFIG, TrainingConfig, training_config, write_config
from trainer.divergence import differences
from trainer.policy import load_policy
from trainer.run_manifest import MANIFEST

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

STEPS = 4
WORKER = "qualification.training.processes"


def prepared(folder: Path, policy: str = "mini4", **settings: object) -> Path:
    """Write the configuration of a run whose group of four is spread over two processes; return its path."""
    made = training_config(policy, load_policy(policy).identity.weights, "nemo", 43, STEPS)
    config = TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), "oracle_steps": "every", **settings})
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, folder / CONFIG)
    return folder / CONFIG


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_goes_wrong_in_one_process_stops_all(defect: str, tmp_path: Path) -> None:
    """A fault of one process MUST end all of them with its reason in the manifest; without one, all complete."""
    ended = torchrun(WORKER, defect, prepared(tmp_path))
    outcome = run_manifest.read(tmp_path).outcome if (tmp_path / MANIFEST).is_file() else ended.stderr[-2000:]
    seen, expected = (outcome[: len(DEFECTS[defect][1])], ended.returncode == 0), (DEFECTS[defect][1], defect == "nothing")
    assert seen == expected, explain(
        subject=f"(outcome, exit code is 0) with {defect}",
        expected=expected,
        got=(outcome, ended.returncode),
        cause="the processes do not tell each other why they end",
    )


def test_one_process_derives_what_two_trained(tmp_path: Path) -> None:
    """Gradients and weights of two processes MUST be those of one on the same rollouts, and all else MUST be held."""
    ended = torchrun(WORKER, "nothing", prepared(tmp_path, groups_per_step=2, gradient_accumulation=2))
    broken = [line for line in replay_audit.audit(tmp_path).lines if line.startswith("BROKEN")]
    seen = (ended.returncode, run_manifest.read(tmp_path).processes, broken)
    assert seen == (0, 2, []), explain(
        subject="(exit code, processes, claims that one process does not derive)",
        expected=(0, 2, []),
        got=seen,
        cause="gradients are not averaged, or the evidence of one process is missing",
    )
