"""The plan of a matched experiment: everything that is decided before it begins."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gymqual.harness.records.run_records import Sha256
from gymqual.trainer.runs.config import TrainingConfig
from gymqual.trainer.runs.manifest import PolicyRecord

THREADS = 1
"""Of torch: sums of floats depend on how they are split."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Assessment(_Model):
    """An evaluation on tasks that no training sees."""

    split: Literal["dev", "test"]
    episodes: int = Field(ge=1)
    seed: int = 0
    """Of sampling. All policies are assessed on the same tasks with the same seed, so that they are pairs."""


class RetentionData(_Model):
    """One file of problems."""

    name: str
    """Of the file; its folder is named when the experiment is run."""
    sha256: Sha256
    problems: int
    """How many are asked, from the file's beginning."""


class RetentionRule(_Model):
    """When a candidate is said to have kept what the baseline knew."""

    significance: float = 0.05
    """It lost problems if the exact McNemar test over pairs says so at this level."""
    nats: float = 0.1
    """It lost knowledge if the negative log-likelihood a token rose by more, unless there was none to lose."""
    uniform_nats: float
    """Log-likelihood a token of a uniform guess: a baseline that is worse has nothing to lose."""


class Plan(_Model):
    """Everything that is decided before a matched experiment begins."""

    format: Literal["gymqual.experiment/1"] = "gymqual.experiment/1"
    arms: tuple[Literal["nemo", "openenv"], ...] = Field(min_length=1)
    """Gyms, in the order of their trainings."""
    training: TrainingConfig
    """Of every arm, but for its ``gym``."""
    policy: PolicyRecord
    gyms: dict[str, Sha256]
    """Digest of each gym's live identity: served bytes, client, core, upstream's wheel and lock, interpreter."""
    versions: dict[str, str]
    device: str
    threads: int = Field(default=THREADS, ge=1)
    resume_steps: int = Field(ge=2)
    """Steps of the resume qualification, which is stopped in the middle."""
    dev: Assessment
    test: Assessment
    retention: tuple[RetentionData, ...]
    retention_rule: RetentionRule
    notes: tuple[str, ...] = ()
    """What is not as it should be, and is allowed."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Plan":
        if len(set(self.arms)) != len(self.arms):
            raise ValueError(f"arms: {' '.join(self.arms)} names a gym twice")
        if set(self.gyms) != set(self.arms):
            raise ValueError("gyms: not those of the arms")
        if self.training.checkpoint_every < 1:
            raise ValueError("training.checkpoint_every: without checkpoints there is nothing to select from")
        return self

    def config(self, arm: str) -> TrainingConfig:
        """Return the training of an arm."""
        return TrainingConfig.model_validate({**self.training.model_dump(), "gym": arm})

    def resume_config(self, arm: str) -> TrainingConfig:
        """Return the short training that an arm's resume is qualified with."""
        short = {"steps": self.resume_steps, "checkpoint_every": 1}
        return TrainingConfig.model_validate({**self.config(arm).model_dump(), **short})

    def candidates(self) -> list[int]:
        """Return the steps after which the policy is a candidate: those of checkpoints, and the last."""
        every, last = self.training.checkpoint_every, self.training.steps
        return sorted({*range(every, last + 1, every), last})
