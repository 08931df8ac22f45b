"""Where the results of an experiment are, and how a candidate is selected."""

from collections.abc import Mapping
from pathlib import Path

from gymqual.trainer.experiment.plan import RetentionData

BASELINE = "baseline"
"""Folder of the policy before training; every arm has one of its gym's name."""
RUN = "run"
RESUME = "resume.json"
TEST = "test.json"
REPLAY = "replay_audit.json"
LOOKS = "looks.json"
"""Every look at the test split: whose, and at which adapter."""
PARITY = "parity.json"
"""Whether the arms sampled the same ids."""
NOTES = "notes.json"
"""What was not planned: what a flag allowed, and trainings that went on after they were stopped."""


def dev_file(owner: str, step: int = 0) -> Path:
    """Return where the dev evaluation of an owner after a step is, below the experiment's folder."""
    return Path(owner) / "dev" / f"step-{step:05d}.json"


def retention_file(owner: str, data: RetentionData) -> Path:
    """Return where an owner's retention is, below the experiment's folder."""
    return Path(owner) / f"retention-{Path(data.name).stem}.json"


def selected(solved: Mapping[int, int]) -> int:
    """Return the step of the candidate with most strict successes on dev, of equal ones the earliest."""
    return min(solved, key=lambda step: (-solved[step], step))
