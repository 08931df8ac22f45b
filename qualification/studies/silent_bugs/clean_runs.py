"""Clean trainings over what a run may be set to: none of them may be accused."""

from dataclasses import dataclass, field
from typing import Any

LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo")
SCALES = ("group", "batch", "none")
BETAS = (0.0, 0.04)
ACCUMULATIONS = (1, 2)
GROUPS = (4, 2, 3)
RATES = (5e-4, 1e-5, 2e-3)


@dataclass(frozen=True)
class CleanRun:
    """One clean training."""

    name: str
    gym: str
    settings: dict[str, Any] = field(default_factory=dict)


def _runs(count: int, precision: str) -> list[CleanRun]:
    """Return runs in which every two values of any two settings meet early: strides without a common factor."""
    made = []
    for number in range(count):
        settings = {
            "loss_type": LOSSES[number % 4],
            "scale_rewards": SCALES[number % 3],
            "beta": BETAS[number // 4 % 2],
            "gradient_accumulation": ACCUMULATIONS[number // 3 % 2],
            "group_size": GROUPS[number // 4 % 3],
            "learning_rate": RATES[number // 2 % 3],
            "groups_per_step": 2,
            "precision": precision,
        }
        gym = ("nemo", "openenv")[number % 2]
        made.append(CleanRun(f"{precision}-{number:02}-{gym}", gym, settings))
    return made


OTHERS = (
    CleanRun("two-iterations", "nemo", {"num_iterations": 2}),
    CleanRun("truncated-left-out", "openenv", {"max_completion_tokens": 67, "mask_truncated": True}),
    CleanRun("truncated-trained", "nemo", {"max_completion_tokens": 67, "groups_per_step": 2}),
    CleanRun("hot", "openenv", {"temperature": 1.3, "groups_per_step": 2}),
)
CLEAN = (*_runs(30, "fp32"), *OTHERS, *_runs(12, "bf16"))
"""In single precision thirty over all settings and four others; in half precision twelve."""
