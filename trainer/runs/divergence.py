"""Whether two completed runs are the same bytes, and where they part if they are not."""

from pathlib import Path

from gymqual.harness.records.divergence import first_difference
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.manifest import ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS


def differences(one: Path, other: Path, steps: int) -> list[str]:
    """Return what two completed runs, with a checkpoint at the last of their steps, differ in; empty if in nothing."""
    last = checkpoints.folder_of(Path(), steps)
    files = (Path(TRACE), Path(ADAPTER) / TENSORS, last / "optimizer.pt", last / "scheduler.pt")
    told = first_difference(one / TRACE, other / TRACE)
    differing = [name.as_posix() for name in files if _digest(one / name) != _digest(other / name)]
    return ([str(told)] if told else []) + differing


def _digest(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "missing"
