"""The reward columns: what a rollout is paid, from the gym's verdict alone."""

from collections.abc import Callable
from typing import Any

import torch

from gymqual.gyms.base import Verdict
from gymqual.harness.records.trace import Episode
from gymqual.trainer.runs.config import Shaping

STRICT = "strict"
SHAPED = "shaped"
"""The reward columns; only the shaped one has weight."""


def shaped(shaping: Shaping, verdict: Verdict) -> float | None:
    """Return the reward that is trained on; None where the gym gives none."""
    return None if verdict.reward is None else shaping.shape(verdict.strict, dict(verdict.parts))


def rewards_of(shaping: Shaping) -> Callable[[Episode], dict[str, float | None]]:
    """Return what an episode must be paid, by column: for the audit, from the episode alone."""

    def rewards(episode: Episode) -> dict[str, float | None]:
        if episode.reward is None:
            return {SHAPED: None, STRICT: None}
        # TRL's reward tensor holds single precision.
        return {SHAPED: _single(shaping.shape(episode.strict, episode.parts)), STRICT: float(episode.strict)}

    return rewards


def column_named(name: str, function: Callable[..., list[float | None]]) -> Callable[..., list[float | None]]:
    """Return a reward function that TRL reports under this name."""

    def column(**named: Any) -> list[float | None]:
        return function(**named)

    column.__name__ = name
    return column


def _single(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()
