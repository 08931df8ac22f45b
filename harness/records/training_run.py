"""Run directories of the trainer: told apart by their manifest, verified by the trainer's own replay audit; and the
parts of that manifest that trainer and page share.

The audit runs in a process of its own, since the harness loads no torch.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT
from gymqual.harness.records.manifest import MANIFEST, Sha256

FORMAT = "gymqual.training-run/1"
NEEDED = ("torch", "transformers", "peft", "safetensors")


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


def verify(folder: Path) -> tuple[list[str], bool]:
    """Return the lines of the replay audit, and whether every claim holds; raises HarnessError if it cannot run."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise HarnessError(f"{folder} is a training run; to verify it needs {', '.join(missing)}: make setup-train")
    # From the product's own folder, so that no package of the working directory is taken for it.
    command = [sys.executable, "-m", "gymqual", "replay", str(folder.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    # An interpreter that died ends with 1 as well, but has told nothing.
    if done.returncode not in (0, 1) or not lines:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("replay_audit: ")
        raise HarnessError(f"{folder}: its replay audit ended with {done.returncode}: {reason}")
    return lines, done.returncode == 0
