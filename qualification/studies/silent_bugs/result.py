"""What the table is made of, as it is written to disk."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gymqual.qualification.broken.faults import STEPS

FORMAT = "gymqual.silent-bugs/1"
HEALTHY = "healthy"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Naive(_Model):
    """What is usually looked at after a training; true is as it should be."""

    tensors_changed: bool
    """Every trainable tensor differs from the initial adapter."""
    gradients: bool
    """Finite at every step, and not zero wherever the rewards of a group differ."""
    base_unchanged: bool
    """Every tensor of the base model is the same bits as before."""


class Study(_Model):
    """A training of a few steps with a planted bug, not stopped, and everything that was found."""

    kind: Literal["study"] = "study"
    fault: str
    precision: str
    found: dict[str, int]
    """Rule of the audit: the optimizer step at which it was first broken, from 1."""
    words: dict[str, str]
    """By rule, what the audit said first."""
    claims: list[str]
    """Claims of the replay that do not hold."""
    naive: Naive | None
    """Null if the training broke down by itself."""
    ended: str
    """``completed``, or what ended the training by itself."""


class Clean(_Model):
    """A training without a bug, through a gym's real service."""

    kind: Literal["clean"] = "clean"
    name: str
    gym: str
    settings: dict[str, object]
    outcome: str
    claims: list[str]
    """Claims of its replay that do not hold: none, or it is an alarm."""
    cosine: float | None
    """Largest distance from 1 of gradient and oracle, over steps whose rewards differ; null if none did."""
    norm_ratio: float | None
    logprob_gap: float
    """Largest, nats."""
    reference_kl: float | None
    """At the first step; null without a KL term."""

    @property
    def alarm(self) -> bool:
        """Whether a clean run was accused."""
        return self.outcome != "completed" or bool(self.claims)


class Curve(_Model):
    """A longer training with a planted bug and without any audit: what it does to the policy."""

    kind: Literal["curve"] = "curve"
    fault: str
    """Name of the bug, or of the healthy trainer with the settings of some."""
    seed: int
    success: float
    """Strict success of the adapter that was saved, on held-out dev tasks at temperature 1."""
    episodes: int
    training: list[float]
    """Strict success of each step's rollouts, as the trainer saw it."""
    ended: str


class SilentBugs(_Model):
    """The whole table."""

    format: Literal["gymqual.silent-bugs/1"] = FORMAT
    steps: int = STEPS
    versions: dict[str, str]
    core: str
    policy: str
    """sha256 of the weights that were trained."""
    sources: str
    """sha256 over trainer, catalogue and task core."""
    baseline: float | None
    """Strict success of the policy before training; null without curves."""
    studies: list[Study]
    clean: list[Clean]
    curves: list[Curve] = Field(default_factory=list)
