"""Run directories of the trainer: told apart by their manifest, verified by the trainer's own replay audit; and the
parts of that manifest that trainer and page share.

The audit runs in a process of its own, since the harness loads no torch.
"""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gymqual.harness.records.manifest import MANIFEST, Sha256

FORMAT = "gymqual.training-run/1"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PolicyRecord(_Model):
    """The policy that was trained, without its adapter; see ``gymqual.trainer.policy.loading.PolicyIdentity``."""

    name: str
    architecture: str
    parameters: int
    config: Sha256
    tokenizer: Sha256
    chat_template: Sha256
    weights: Sha256


class TokenTotals(_Model):
    """Token ids over all rows of the trace."""

    sampled: int
    """Trained: sampled by the assistant, mask 1; nothing of a rollout that is left out because a budget ended it."""
    external: int
    """Excluded: observations and the template's framing inside completions, mask 0. Prompts are not counted."""
    cut: int
    """Sampled, but cut off by a budget and neither trained nor kept."""


class ReplayTotals(_Model):
    """How the gym's answers were held against the local core."""

    episodes: int
    observations: int
    disagreements: int


class TensorTotals(_Model):
    """The adapter's tensors, ``initial_adapter`` against ``adapter``; see ``gymqual.trainer.runs.tensors.Change``."""

    trainable: int
    changed: int
    with_gradient: int
    """Tensors with a nonzero gradient in at least one step."""
    unchanged: tuple[str, ...]
    elements_changed: float
    """Share of all elements, 0 to 1."""
    update_ratio: dict[str, float | None]
    """By tensor, norm of the update over norm before it; null where that is 0, as of a fresh LoRA B."""


def is_run(folder: Path) -> bool:
    """Whether a directory's manifest is that of a training run; False if there is none to read."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT
