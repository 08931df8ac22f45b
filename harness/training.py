"""Run directories of the trainer: told apart by their manifest, verified by the trainer's own replay audit.

The audit runs in a process of its own, since the harness loads no torch.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from harness.errors import HarnessError
from harness.files import ROOT
from harness.manifest import MANIFEST

FORMAT = "gymqual.training-run/1"
NEEDED = ("torch", "transformers", "peft", "safetensors")


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
    command = [sys.executable, "-m", "trainer.replay_audit", str(folder.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    # An interpreter that died ends with 1 as well, but has told nothing.
    if done.returncode not in (0, 1) or not lines:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("replay_audit: ")
        raise HarnessError(f"{folder}: its replay audit ended with {done.returncode}: {reason}")
    return lines, done.returncode == 0
