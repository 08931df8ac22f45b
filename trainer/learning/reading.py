"""Reading what the stages of a training wrote, so that a file of another kind is named and not taken."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.run_records import GymRecord, Sha256
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.runs.manifest import ADAPTER, PolicyRecord
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS

_Content = TypeVar("_Content", bound=BaseModel)


def read_result(path: Path, kind: type[_Content]) -> _Content:
    """Read what a stage wrote; raises HarnessError naming the file and the first field that is wrong."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise HarnessError(f"{path} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise HarnessError(f"{path} is not what this command wrote ({where}: {first['msg']})") from None


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Step(_Read):
    strict: float
    groups: int


class _Tokens(_Read):
    sampled: int
    cut: int


class TrainedRun(_Read):
    """What is read of a training run's manifest: one that an earlier product wrote must stay readable."""

    outcome: str
    config: dict[str, Any]
    policy: PolicyRecord
    gym: GymRecord
    core: Sha256
    tokens: _Tokens
    steps: tuple[_Step, ...]
    varied_groups: int
    files: dict[str, Sha256]

    @property
    def trace(self) -> Sha256 | None:
        """sha256 of its trace, None if it lists none."""
        return self.files.get(TRACE)

    @property
    def adapter(self) -> Sha256 | None:
        """sha256 of its adapter's tensors file, None if it lists none."""
        return self.files.get(f"{ADAPTER}/{TENSORS}")
