"""Where two runs part: the first record of their traces that is not the same."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.files import sha256_file
from trainer import checkpoints
from trainer.run_manifest import ADAPTER, TRACE
from trainer.tensors import ADAPTER as TENSORS
from trainer.trace import Record, read_trace


def differences(one: Path, other: Path, steps: int) -> list[str]:
    """Return what two completed runs, with a checkpoint at the last of their steps, differ in; empty if in nothing."""
    last = checkpoints.folder_of(Path(), steps)
    files = (Path(TRACE), Path(ADAPTER) / TENSORS, last / "optimizer.pt", last / "scheduler.pt")
    told = first_difference(one, other)
    differing = [name.as_posix() for name in files if _digest(one / name) != _digest(other / name)]
    return ([told] if told else []) + differing


def _digest(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "missing"


def first_difference(one: Path, other: Path) -> str | None:
    """Return where the traces of two run directories part, by step, rollout, turn and token; None if nowhere.

    Raises HarnessError for what is no trace.
    """
    step = 1
    for number, (left, right) in enumerate(zip_longest(read_trace(one / TRACE), read_trace(other / TRACE)), start=1):
        if left != right:
            return f"record {number}, step {step}: {_told(left, right)}"
        if left is not None and left.kind == "step":
            step = left.step + 1
    return None


def _told(left: Record | None, right: Record | None) -> str:
    present: Any = left or right
    if left is None or right is None:
        return f"one ends, the other has a {present.kind}"
    if left.kind != right.kind:
        return f"a {left.kind} and a {right.kind}"
    before, after = left.model_dump(), right.model_dump()
    name = next(name for name, value in before.items() if value != after[name])
    places = [f"{place} {before[place]}" for place in ("rollout", "turn") if place in before]
    values = (before[name], after[name])
    if all(isinstance(value, list) for value in values):
        token = next((n for n, pair in enumerate(zip_longest(*values)) if pair[0] != pair[1]), 0)
        return f"{', '.join([left.kind, *places])}: {name} from token {token}"
    return f"{', '.join([left.kind, *places])}: {name} {str(values[0])[:40]} and {str(values[1])[:40]}"
