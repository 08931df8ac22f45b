"""Checkpoints that a run goes on from bit for bit, and the refusal of every other.

A checkpoint is a folder ``checkpoints/step-00004`` of a run: what transformers saves (adapter, optimizer, schedule,
random states, progress), TRL's buffer of rollouts that are still to be trained, the audit's state, and a mark that
names everything the continuation depends on. It is made elsewhere and moved into its place whole. Sources of the
rules: transformers restores neither TRL's ``_step`` nor its buffer, so that a stock resume draws a batch anew; sums of
floats depend on threads and versions; a schedule depends on the configured number of steps.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.run_records import Sha256
from gymqual.trainer.runs.distributed import ALONE, Ranks

FOLDER = "checkpoints"
MARK = "checkpoint.json"
BUFFER = "buffer.pt"
AUDIT = "audit.pt"
_PARTIAL = ".partial"


class Surroundings(BaseModel):
    """What a continuation depends on beside the checkpoint itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]
    """Content of training.json."""
    policy: Sha256
    """Digest of the policy's identity: weights, config, tokenizer, template."""
    core: Sha256
    gym: Sha256
    """Digest of the gym's identity."""
    versions: dict[str, str]
    threads: int
    """Of torch."""
    processes: int
    device: str


class Mark(BaseModel):
    """What a checkpoint says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["gymqual.checkpoint/1"] = "gymqual.checkpoint/1"
    step: int
    surroundings: Surroundings
    trace_bytes: int
    """Length of the run's trace when the checkpoint was made; what stands behind is done again."""
    trace: Sha256
    """Of the trace up to there."""
    files: dict[str, Sha256]


def folder_of(run: Path, step: int) -> Path:
    """Return where a run's checkpoint of a step is."""
    return run / FOLDER / f"step-{step:05d}"


def save(
    run: Path, step: int, write: Callable[[Path], Path], seal: Callable[[Path], object], ranks: Ranks = ALONE
) -> None:
    """Make a checkpoint: ``write`` fills a folder below the one it is given and returns it, ``seal`` marks it.

    Every process writes its part, the first one marks the whole. Raises HarnessError if it cannot be written whole.
    """
    partial = run / FOLDER / _PARTIAL
    final = folder_of(run, step)

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def end() -> None:
        with writing(final):
            seal(made)
        # A run that goes on from an earlier step makes it anew.
        shutil.rmtree(final, ignore_errors=True)
        os.replace(made, final)
        shutil.rmtree(partial, ignore_errors=True)

    try:
        ranks.once(begin)
        with writing(final):
            made = write(partial)
        ranks.wait()
        ranks.once(end)
    except HarnessError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise HarnessError where what is saved cannot be written: a full disk has another name in every library."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise HarnessError(
            f"{path} cannot be written ({reason}); make room, and go on from the last checkpoint"
        ) from None


def mark(folder: Path, step: int, surroundings: Surroundings, trace: Path) -> None:
    """Write the mark of a checkpoint, last."""
    found = Mark(
        step=step,
        surroundings=surroundings,
        trace_bytes=trace.stat().st_size,
        trace=sha256_file(trace),
        files=_digests(folder),
    )
    write_atomically(folder / MARK, readable_json(found.model_dump(mode="json")))


def _digests(folder: Path) -> dict[str, Sha256]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARK)
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in paths}


def newest(run: Path, steps: int) -> tuple[Path, Mark]:
    """Return a run's newest checkpoint before the last of its steps; raises HarnessError if there is none.

    A run that was killed after its last step takes that step again.
    """
    folders = [path for path in (run / FOLDER).glob("step-*") if path.is_dir()]
    found = sorted((path for path in folders if _step(path) < steps), key=_step)
    if not found:
        raise HarnessError(
            f"{run} has no checkpoint to go on from; it was made without checkpoint_every, or stopped early"
        )
    folder = found[-1]
    try:
        made = Mark.model_validate_json((folder / MARK).read_bytes())
    except (OSError, ValidationError) as error:
        raise HarnessError(f"{folder / MARK} cannot be read ({str(error).splitlines()[0]}); remove {folder}") from None
    present = _digests(folder)
    odd = sorted(name for name in made.files.keys() | present.keys() if made.files.get(name) != present.get(name))
    if odd:
        raise HarnessError(f"{folder}: {odd[0]} is not what was saved; remove the folder to go on from the one before")
    return folder, made


def _step(folder: Path) -> int:
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def require_same(made: Mark, now: Surroundings) -> None:
    """Raise HarnessError naming everything that would let a continuation differ."""
    differing = list(_differences(made.surroundings.model_dump(), now.model_dump()))
    if differing:
        raise HarnessError(f"the run cannot be continued exactly: {'; '.join(differing)}")


def require_alike(of_processes: Sequence[Surroundings]) -> None:
    """Raise HarnessError naming the first process of a training that is in other surroundings than the first one."""
    first = of_processes[0].model_dump()
    for rank, other in enumerate(of_processes):
        if differing := list(_differences(first, other.model_dump())):
            raise HarnessError(f"process {rank} cannot train with process 0: {'; '.join(differing)}")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, value in before.items():
        other = now[name]
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differences(value, {each: other.get(each, "none") for each in value})
        elif value != other:
            yield f"{name} was {str(value)[:40]}, is {str(other)[:40]}"


def cut_trace(trace: Path, made: Mark) -> None:
    """Cut what was recorded after a checkpoint off a trace; raises HarnessError if it is another one up to there."""
    length = trace.stat().st_size if trace.is_file() else 0
    if length < made.trace_bytes:
        raise HarnessError(f"{trace} has {length} bytes, step {made.step} was reached after {made.trace_bytes}")
    with trace.open("rb+") as file:
        if hashlib.sha256(file.read(made.trace_bytes)).hexdigest() != made.trace:
            raise HarnessError(
                f"{trace} is not the one that step {made.step} was reached with; restore it, or begin anew"
            )
        file.truncate(made.trace_bytes)
        os.fsync(file.fileno())


def part(folder: Path, name: str, rank: int) -> Path:
    """Return where a process keeps its own part of a checkpoint, named as transformers names random states."""
    return folder / (name if rank == 0 else f"_{rank}.".join(name.rsplit(".", 1)))


def save_buffer(trainer: Any, folder: Path) -> None:
    """Save what TRL holds of rollouts between steps, which transformers knows nothing of."""
    kept = {"step": trainer._step, "buffer": trainer._buffered_inputs}
    torch.save(kept, part(folder, BUFFER, trainer.accelerator.process_index))


def load_buffer(trainer: Any, folder: Path) -> None:
    """Give TRL back what it held."""
    held = torch.load(part(folder, BUFFER, trainer.accelerator.process_index), weights_only=True)
    trainer._step, trainer._buffered_inputs = held["step"], held["buffer"]
