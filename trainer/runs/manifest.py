"""The manifest of a training run: what the run directory claims, each claim derivable from its other files.

``gymqual replay RUN_DIR`` derives them again. Written last and atomically.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.manifest import MANIFEST, PAGE
from gymqual.harness.records.run_records import GymRecord, Sha256
from gymqual.harness.records.trace import Step
from gymqual.harness.records.training_run import FORMAT, PolicyRecord, ReplayTotals, TensorTotals, TokenTotals
from gymqual.trainer.runs.config import TrainingConfig

INITIAL_ADAPTER = "initial_adapter"
ADAPTER = "adapter"
COMPLETED = "completed"
INTERRUPTED = "stopped: interrupted"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class StepRecord(_Model):
    """One optimizer step; see ``gymqual.harness.records.trace.Step``."""

    step: int
    strict: float
    reward: float | None
    groups: int
    varied_groups: int
    nothing_to_learn: str
    gradient_norm: float
    learning_rate: float
    policy_after: Sha256
    logprob_gap_max: float | None


class TrainingRun(_Model):
    """Everything a training run claims."""

    format: Literal["gymqual.training-run/1"] = FORMAT
    outcome: str
    """``completed``, or ``stopped: `` and why."""
    config: TrainingConfig
    """Content of training.json."""
    policy: PolicyRecord
    gym: GymRecord
    """What the gym said it is."""
    core: Sha256
    """sha256 of the task core that the replay during training executed."""
    consumed_tasks: dict[str, int]
    """Rollouts of each task that stand as rows in the trace."""
    tokens: TokenTotals
    replay: ReplayTotals
    tensors: TensorTotals | None
    """Null if the run stopped before it saved an adapter."""
    steps: tuple[StepRecord, ...]
    strict_training_success: float | None
    """Share of strict success among all rows; null if there are none."""
    mean_shaped_reward: float | None
    """Mean reward that was trained on, over all rows that have one; null if there are none."""
    scores_are: Literal["not a held-out score"] = "not a held-out score"
    """What the two numbers above are: a record of training rollouts."""
    varied_groups: int
    """Groups, over all steps, whose rewards differed."""
    processes: int = Field(default=1, ge=1, exclude_if=lambda count: count == 1)
    """Processes that trained together, each a share of every step's rollouts; 1 is not written down."""
    device: str = Field(default="cpu", exclude_if=lambda device: device == "cpu")
    """What trained: a GPU by name, capability, memory and CUDA version; the CPU is not written down."""
    deviations: tuple[str, ...]
    """What was not as it should be and was allowed; not derivable."""
    seconds: float
    """Wall time of training; not derivable."""
    files: dict[str, Sha256]
    """sha256 of every file of the run directory but the manifest and its page, by path."""


def step_record(step: Step) -> StepRecord:
    """Return what the manifest keeps of a step of the trace."""
    return StepRecord.model_validate(step.model_dump(include=set(StepRecord.model_fields)))


def list_files(folder: Path) -> dict[str, Sha256]:
    """Hash every regular file of a run directory but its manifest and the page made of it, in path order."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: sha256_file(path) for name, path in names.items() if name not in (MANIFEST, PAGE)}


def to_bytes(run: TrainingRun) -> bytes:
    """Return the one form in which a manifest is written."""
    return readable_json(run.model_dump(mode="json"))


def write(run: TrainingRun, folder: Path) -> Path:
    """Write the manifest of a run directory; return its path."""
    path = folder / MANIFEST
    write_atomically(path, to_bytes(run))
    return path


def read(folder: Path) -> TrainingRun:
    """Read a run directory's manifest; raises HarnessError naming what is wrong with it."""
    path = folder / MANIFEST
    try:
        return TrainingRun.model_validate_json(path.read_bytes())
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise HarnessError(f"{path} {reason}: not a training run, or the run did not end; run it again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise HarnessError(f"{path} is not a whole manifest of {FORMAT} ({where}: {first['msg']})") from None


def schema() -> bytes:
    """Return the JSON Schema of a manifest, as it stands in ``reports/schema/training-run.schema.json``."""
    return readable_json({"title": FORMAT, **TrainingRun.model_json_schema()})
