"""Whether two completed runs are the same bytes, and where they part if they are not."""

from pathlib import Path

from harness.divergence import first_difference
from harness.files import sha256_file
from harness.trace import TRACE
from trainer import checkpoints
from trainer.run_manifest import ADAPTER
from trainer.tensors import ADAPTER as TENSORS


def differences(one: Path, other: Path, steps: int) -> list[str]:
    """Return what two completed runs, with a checkpoint at the last of their steps, differ in; empty if in nothing."""
    last = checkpoints.folder_of(Path(), steps)
    files = (Path(TRACE), Path(ADAPTER) / TENSORS, last / "optimizer.pt", last / "scheduler.pt")
    told = first_difference(one / TRACE, other / TRACE)
    differing = [name.as_posix() for name in files if _digest(one / name) != _digest(other / name)]
    return ([str(told)] if told else []) + differing


def _digest(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "missing"
