"""The frozen configuration of a training run: one ``training.json``, every field of it documented, none unknown."""

import json
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gymqual.gyms import loaded
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, write_atomically

FORMAT = "gymqual.training/1"
CONFIG = "training.json"
Generation = Literal["exact", "cached"]
GENERATIONS: tuple[Generation, ...] = get_args(Generation)
POOL = 16
"""Tasks of a frozen pool."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lora(_Frozen):
    """The adapter that is trained (peft)."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    targets: str | tuple[str, ...] = "all-linear"
    """Module names, or ``all-linear``. Dropout is 0: a dropped weight is noise that no replay repeats."""


class Shaping(_Frozen):
    """The reward that is trained on: a sum of milestones. Strict success alone is ever reported as success."""

    strict: float = 1.0
    lookup: float = 0.0
    calculation: float = 0.0
    answer: float = 0.0

    def shape(self, strict: bool, parts: dict[str, float]) -> float:
        """Return the shaped reward of a verdict."""
        weighted = {name: getattr(self, name) for name in ("lookup", "calculation", "answer")}
        return self.strict * strict + sum(weight * parts.get(name, 0.0) for name, weight in weighted.items())


class Bands(_Frozen):
    """How far measured and recomputed may lie apart before a run is stopped.

    The defaults are for single precision, each at least five times the largest of the clean trainings in
    ``reports/sample/silent-bugs``, which go over loss types, reward scales, KL terms, accumulation, group sizes and
    learning rates. What is left between trainer and oracle there is the order of sums.
    """

    cosine: float = 1e-6
    """Of 1: the trainer's gradient against the oracle's."""
    norm_ratio: float = 1e-4
    """Of 1: their norms."""
    update: float = 1e-3
    """Of 1: an optimizer step's change of the weights against the one computed again."""
    siblings: float = 1e-6
    """Chance that a run of independent draws repeats, or does not repeat, rollouts so as to be stopped."""
    logprob_noise: float = 1e-5
    """How well a log-probability is known, nats: what rounding alone may make of a gradient."""
    logprob_gap: float = 2e-4
    """Largest difference of the sampler's and the loss's log-probability, at equal weights, nats."""
    logprob_gap_magnified: float = 5e-3
    """The same where rounding is magnified (``gymqual.trainer.audit.tolerances``): no place excuses more."""
    logprob_kl: float = 1e-6
    """Mean over a step's trained ids of the estimated KL of sampler and loss, at equal weights, nats."""


BF16_BANDS = Bands(
    cosine=5e-3, norm_ratio=0.25, logprob_noise=1e-2, logprob_gap=0.5, logprob_gap_magnified=1.0, logprob_kl=1e-3
)
"""In bf16 a forward pass with padding and one without differ in the third digit, and where a token is all but certain,
the gradient of its log-probability, which goes with 1 - p, in the first. Each is at least twice the largest of clean
trainings; small bugs are below that."""


def bands_of(precision: str) -> Bands:
    """Return the bands that clean runs of a precision, ``fp32`` or ``bf16``, keep."""
    return BF16_BANDS if precision == "bf16" else Bands()


class TrainingConfig(_Frozen):
    """One training run."""

    format: Literal["gymqual.training/1"] = "gymqual.training/1"
    gym: Literal["nemo", "openenv"] = "nemo"
    policy: str = "mini"
    """Name of an embedded policy, or a directory of a causal LM."""
    policy_weights: str = ""
    """sha256 of the policy's weights; empty: whatever is there. Another policy is refused."""
    core: str = ""
    """sha256 of the task core that the pool was made for; empty: the present one. Another core is refused."""
    seed: int = Field(default=43, ge=0)
    """Of sampling, adapter initialisation and order."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """The frozen task pool, in the order of training. Each optimizer step takes the next ``groups_per_step``."""
    repeat_pool: bool = False
    """Begin the pool again when it is used up; else it must be large enough for all steps."""
    shuffle: bool = False
    """Take the pool in a permutation, another one each time it is gone through, by ``seed``."""
    steps: int = Field(default=8, ge=1)
    """Optimizer steps."""
    groups_per_step: int = Field(default=1, ge=1)
    group_size: int = Field(default=4, ge=2)
    """Rollouts of one task that are compared with each other."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Constant, AdamW without weight decay: decay alone would change tensors."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    loss_type: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term against the policy without its adapter."""
    gradient_accumulation: int = Field(default=1, ge=1)
    """Forward and backward passes that the rollouts of a step are split over."""
    steps_per_generation: int | None = Field(default=None, ge=1)
    """Forward passes that one batch of rollouts is split over; null: those of one optimizer step."""
    num_iterations: int = Field(default=1, ge=1)
    """Optimizer steps that are taken with the same rollouts."""
    mask_truncated: bool = False
    """Leave rollouts that a budget ended out of the loss, and of what it is divided by."""
    temperature: float = Field(default=1.0, gt=0)
    max_completion_tokens: int = Field(default=128, ge=1)
    """Of a rollout: sampled tokens and observations together."""
    max_tool_rounds: int = Field(default=3, ge=1)
    """Turns with tool calls that are answered."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Optimizer steps from one checkpoint to the next; 0: none is made."""
    deadline_s: float = Field(default=30.0, gt=0)
    """Of one gym call, seconds."""
    precision: Literal["fp32", "bf16"] = "fp32"
    generation: Generation = Field(default="exact", exclude_if=lambda chosen: chosen == "exact")
    """How rollouts are sampled: ``exact``, to the bits of plain TRL on this seed, or ``cached``, with one key-value
    cache for all turns and the adapter merged into a copy of the weights: faster, other bits. Not written where it is
    exact, so that a run from before there was a choice has the bytes of one that chose it."""
    lora: Lora = Lora()
    shaping: Shaping = Shaping()
    bands: Bands = Field(default_factory=lambda made: bands_of(made["precision"]))
    """By default those of the precision."""
    oracle_steps: tuple[int, ...] | Literal["first, second, last", "every"] = "first, second, last"
    """Steps whose gradient is computed a second time."""

    @model_validator(mode="after")
    def _pool_is_large_enough(self) -> "TrainingConfig":
        needed = -(-self.steps // (self.steps_per_batch * self.num_iterations)) * self.groups_per_batch
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("tasks: a task stands in the pool twice")
        if self.groups_per_batch > len(self.tasks):
            raise ValueError(f"tasks: a batch of rollouts needs {self.groups_per_batch}")
        if needed > len(self.tasks) and not self.repeat_pool:
            raise ValueError(f"tasks: {self.steps} steps of {self.groups_per_step} groups need {needed} tasks")
        if (self.steps_per_generation or self.gradient_accumulation) % self.gradient_accumulation:
            raise ValueError("steps_per_generation: a batch of rollouts is no whole number of optimizer steps")
        rollouts = self.groups_per_step * self.group_size
        if rollouts % self.gradient_accumulation:
            raise ValueError(
                f"gradient_accumulation: {rollouts} rollouts of a step are not {self.gradient_accumulation} equal parts"
            )
        return self

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps that go through a batch of rollouts once."""
        return (self.steps_per_generation or self.gradient_accumulation) // self.gradient_accumulation

    @property
    def groups_per_batch(self) -> int:
        """Groups of a batch of rollouts."""
        return self.groups_per_step * self.steps_per_batch

    def oracle_at(self, step: int) -> bool:
        """Whether the gradient of a step, counted from 1, is computed a second time."""
        if self.oracle_steps == "every":
            return True
        chosen = (1, 2, self.steps) if isinstance(self.oracle_steps, str) else self.oracle_steps
        return step in chosen


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


def read_config(path: Path) -> TrainingConfig:
    """Read a training.json; raises HarnessError naming the field that is wrong."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path} cannot be read ({error}); make one with gymqual prepare RUN_DIR") from None
    if isinstance(data, dict) and "arms" in data:
        raise HarnessError(f"{path} is the plan of an experiment, not of one run; name a training.json")
    try:
        return TrainingConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise HarnessError(f"{path}: {f'{where}: ' if where else ''}{said}") from None


def write_config(config: TrainingConfig, path: Path) -> None:
    """Write a training.json."""
    write_atomically(path, readable_json(config.model_dump(mode="json")))
