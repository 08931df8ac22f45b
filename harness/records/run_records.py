"""What the manifest of a run is made of: records of one invocation, its machine, stacks, gyms, checks and files."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["passed", "failed", "not_testable"]
Sha256 = str


class StrictModel(BaseModel):
    """Frozen, with no field but its own, each described by its docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Product(StrictModel):
    """The product that examined."""

    name: str
    version: str
    commit: str | None
    """Revision of the checkout; null outside one."""
    dirty: bool | None
    """Whether the checkout differed from that revision."""


class RunFacts(StrictModel):
    """One invocation."""

    id: str
    mode: Literal["qualification", "broken"]
    """``broken``: the checks themselves were examined, against defective subjects."""
    started: str
    """UTC, ISO 8601."""
    finished: str
    """UTC, ISO 8601."""
    arguments: tuple[str, ...]
    """Command line of pytest."""
    exit_status: int
    """Exit status of pytest."""


class Machine(StrictModel):
    """Where it ran."""

    platform: str
    cpus: int
    memory_bytes: int
    python: str
    """Interpreter of the checks."""


class StackRecord(StrictModel):
    """One isolated environment."""

    name: str
    version: str
    """Full version of its interpreter."""
    lock_sha256: Sha256
    platform: str
    flags: tuple[str, ...]
    deviation: str | None


class GymRecord(StrictModel):
    """What a served gym said it is; see ``gymqual.gyms.base.GymIdentity``."""

    gym: str
    upstream: str
    upstream_digest: Sha256
    upstream_modified: tuple[str, ...]
    stands_for: str
    python: str
    core: Sha256
    sources: dict[str, Sha256]


class CheckRecord(StrictModel):
    """One check as it ran."""

    id: str
    must: str
    gym: str | None
    """Null for a check that needs no gym."""
    test: str
    """pytest node id."""
    outcome: Outcome
    duration_s: float
    defect: str | None = None
    """Defect of the subject, in a run of mode ``broken``."""
    message: str | None = None
    """Why it did not pass."""
    measured: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, Sha256] = Field(default_factory=dict)
    """Evidence files by path."""
    rfc008: tuple[str, ...] = Field(default=(), exclude_if=lambda ids: not ids)
    """Check ids of OpenEnv's RFC 008 that mean the same; none is not written down. See ``harness/plugin/rfc008.py``."""

    @property
    def case(self) -> str:
        """The id, with the parameters of a check that has several cases: ``PARITY-01[nemo]``."""
        _, bracket, parameters = self.test.partition("[")
        return f"{self.id}{bracket}{parameters}"


class FileRecord(StrictModel):
    """One file of the run."""

    path: str
    sha256: Sha256
    size: int
    """Bytes."""


class VerdictRecord(StrictModel):
    """What follows from the records."""

    qualified: bool
    reasons: tuple[str, ...]
    """Why not; empty when qualified."""
