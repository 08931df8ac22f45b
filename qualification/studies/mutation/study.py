"""Try a sample of mutants of every subject, and write table and result.

Writes mutations.json and the table of README.md, behind which notes are kept, and names every survivor that is not
explained and every explanation that is not needed.
"""

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.qualification.studies.mutation.result import (
    EXPLAINED,
    FOLDER,
    RESULT,
    TABLE,
    Mutant,
    Sample,
    faults,
    read_explained,
    read_sample,
    table,
)
from gymqual.qualification.studies.mutation.sampling import SEED, sample, try_subject
from gymqual.qualification.studies.mutation.subjects import SUBJECTS

NAMES = tuple(subject.name for subject in SUBJECTS)
NOTES = "\n## "
"""Where notes begin that follow the table."""


def command(
    *,
    out: Annotated[Path | None, Parameter(help="Folder that gets result and table.")] = None,
    subject: Annotated[list[str] | None, Parameter(help=f"Only these: {', '.join(NAMES)}.")] = None,
    mutants: Annotated[int | None, Parameter(help="Of every subject; its own number without it.")] = None,
    seed: Annotated[str, Parameter(help="Of the sample.")] = SEED,
    again: Annotated[bool, Parameter(help="Keep what is noticed by --out; try its survivors alone.")] = False,
    logs: Annotated[Path | None, Parameter(help="Keep the copies and what pytest said in this folder.")] = None,
) -> int:
    """Try small changes of what judges, and name every one that no check notices and nothing explains."""
    chosen = subject or list(NAMES)
    if unknown := sorted({*chosen} - {*NAMES}):
        raise HarnessError(f"--subject {unknown[0]}: choose from {', '.join(NAMES)}")
    tried: list[Mutant] = []
    before = read_sample(out).mutants if out and (out / RESULT).exists() else ()
    known = [mutant for mutant in before if again and mutant.subject in chosen]
    others = [mutant for mutant in before if mutant.subject not in chosen]
    explained = [entry for entry in read_explained(FOLDER / EXPLAINED) if entry.subject in chosen]
    with tempfile.TemporaryDirectory(prefix="gymqual-mutation-") as folder:
        for each in (each for each in SUBJECTS if each.name in chosen):
            place = (logs or Path(folder)) / each.name.replace(" ", "-")
            place.mkdir(parents=True)
            for mutant in try_subject(each, place, _say, seed=seed, count=mutants, known=known):
                tried.append(mutant)
                # What an interruption leaves is whole: what was not tried again yet is as it was.
                left = [one for one in known if one.key not in {other.key for other in tried}]
                if out is not None:
                    _write(out, sample(seed, [*others, *tried, *left]))
    if out is not None:
        _write(out, sample(seed, [*others, *tried]))
    wrong = list(faults(tried, explained))
    print("\n".join(wrong) or f"{len(tried)} mutants, every survivor explained")
    return 1 if wrong else 0


def _say(said: str) -> None:
    print(said, flush=True)


def _write(folder: Path, made: Sample) -> None:
    """Write the result so far, and the table over the notes that are there."""
    order = {subject.name: number for number, subject in enumerate(SUBJECTS)}
    made = made.model_copy(update={"mutants": tuple(sorted(made.mutants, key=lambda m: order[m.subject]))})
    write_atomically(folder / RESULT, readable_json(made.model_dump(mode="json")))
    told = folder / TABLE
    _, found, notes = (told.read_text(encoding="utf-8") if told.exists() else "").partition(NOTES)
    write_atomically(told, (table(made, read_explained(FOLDER / EXPLAINED)) + found + notes).encode())
