"""What became of a sample, what is explained of it, and the table."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT

FOLDER = ROOT / "reports" / "sample" / "mutation"
RESULT, EXPLAINED, TABLE = "mutations.json", "explained.toml", "README.md"

Key = tuple[str, str, str, str]
"""What a mutant is named by: no line, which an edit elsewhere would change."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Mutant(_Model):
    """One small change, and what became of it."""

    subject: str
    module: str
    definition: str
    operator: str
    """cosmic-ray's name."""
    before: str
    """The lines that are changed."""
    after: str
    ended: Literal["passed", "failed", "timed out"]
    """How the checks ended; ``passed``: nobody noticed."""
    by: str
    """The check that noticed."""
    seconds: float
    """Of a CPU."""

    @property
    def key(self) -> Key:
        """Subject, operator, source text, and what it became."""
        return (self.subject, self.operator, self.before, self.after)

    @property
    def survived(self) -> bool:
        """Whether no check noticed it."""
        return self.ended == "passed"


class Explained(_Model):
    """A survivor that no check can notice, or need not."""

    subject: str
    operator: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> Key:
        """As a mutant's."""
        return (self.subject, self.operator, self.before, self.after)


class Sample(_Model):
    """All that were tried."""

    seed: str
    machine: str
    mutants: tuple[Mutant, ...]


def read_sample(folder: Path) -> Sample:
    """Read a result; raises HarnessError if it is none."""
    try:
        return Sample.model_validate_json((folder / RESULT).read_bytes())
    except (OSError, ValueError) as error:
        raise HarnessError(f"{folder / RESULT} is no result of a sample ({error}); make it again") from None


def read_explained(path: Path) -> tuple[Explained, ...]:
    """Read what is explained; raises HarnessError if it is not to be read."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", [])
        return tuple(Explained.model_validate(entry) for entry in entries)
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path} is not to be read ({error})") from None


def faults(mutants: Iterable[Mutant], explained: Iterable[Explained]) -> Iterator[str]:
    """Yield survivors that are not explained, and explanations of what did not survive."""
    survivors = {mutant.key: mutant for mutant in mutants if mutant.survived}
    entries = [entry.key for entry in explained]
    for key, mutant in survivors.items():
        if key not in entries:
            yield f"{key[0]}: nothing notices {mutant.operator} in {mutant.module}: {mutant.before}  ->  {mutant.after}"
    for key in entries:
        if key not in survivors:
            yield f"{key[0]}: explained, and did not survive: {key[1]}: {key[2]}  ->  {key[3]}"
        if entries.count(key) > 1:
            yield f"{key[0]}: explained more than once: {key[1]}: {key[2]}"


def table(sample: Sample, explained: Sequence[Explained]) -> str:
    """Return what README.md begins with: it follows from the files beside it."""
    rows = [
        "# Small changes, and whether the checks notice",
        "",
        "A product that judges others is worth as much as its own checks. cosmic-ray changes one operator, number,",
        "branch or loop at a time in a copy of what judges, drawn by a seed, and the checks that are meant to notice",
        "are run against each. What they let pass was either a hole, which is mended, or is explained one by one in",
        f"[{EXPLAINED}]({EXPLAINED}).",
        "",
        "| subject | mutants | killed | survived | of these explained | CPU minutes |",
        "|---|---|---|---|---|---|",
    ]
    keys = {entry.key for entry in explained}
    names = list(dict.fromkeys(mutant.subject for mutant in sample.mutants))
    for name in [*names, ""]:
        of = [mutant for mutant in sample.mutants if name in ("", mutant.subject)]
        survived = [mutant for mutant in of if mutant.survived]
        told = sum(mutant.key in keys for mutant in survived)
        minutes = sum(mutant.seconds for mutant in of) / 60
        figures = (len(of), len(of) - len(survived), len(survived), told)
        rows.append(f"| {name or 'all'} | {' | '.join(map(str, figures))} | {minutes:.1f} |")
    modules = {name: sorted({m.module for m in sample.mutants if m.subject == name}) for name in names}
    rows += ["", *(f"- {name}: {', '.join(f'`{module}`' for module in of)}" for name, of in modules.items())]
    rows += ["", f"Seed {sample.seed!r}, {sample.machine}. `make mutation` does it again on one core."]
    return "\n".join(rows) + "\n"
