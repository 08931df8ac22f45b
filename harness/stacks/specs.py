"""What the environment of each gym needs: its upstream distribution, its hashed lock, its Python."""

from dataclasses import dataclass
from pathlib import Path

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT

Version = tuple[int, int, int]


@dataclass(frozen=True)
class StackSpec:
    """What a gym's environment needs."""

    name: str
    distribution: str
    """The upstream distribution that makes it this gym's stack."""
    floor: Version
    """Lowest Python that is no deviation."""
    floor_is: str
    """Whose demand the floor is, for the text of a deviation."""
    lowest: Version
    """Lowest Python accepted at all; below the floor it is a recorded deviation."""
    resolved_for: Version
    """Python that the lock was resolved for; an older one is given what that one would get."""

    @property
    def lock(self) -> Path:
        """The hashed lock; beside the checkout's packages or inside the installed one."""
        for folder in (ROOT / "requirements",):
            if (folder / f"{self.name}.lock").is_file():
                return folder / f"{self.name}.lock"
        raise HarnessError(f"requirements/{self.name}.lock is missing; restore it from version control")

    @property
    def variable(self) -> str:
        """Environment variable that names the interpreter."""
        return f"GYMQUAL_{self.name.upper()}_PYTHON"


STACKS = {
    spec.name: spec
    for spec in (
        StackSpec(
            "nemo",
            "nemo-gym",
            floor=(3, 13, 14),
            floor_is="nemo-gym's floor",
            # An older patch release of the same minor version runs it as well.
            lowest=(3, 13, 0),
            resolved_for=(3, 13, 14),
        ),
        StackSpec(
            "openenv",
            "openenv",
            floor=(3, 13, 0),
            floor_is="the version this stack is qualified on,",
            lowest=(3, 11, 0),
            resolved_for=(3, 11, 0),
        ),
        StackSpec(
            "verifiers",
            "verifiers",
            floor=(3, 11, 0),
            floor_is="verifiers' floor",
            lowest=(3, 11, 0),
            resolved_for=(3, 11, 0),
        ),
    )
}


def dotted(version: Version) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
