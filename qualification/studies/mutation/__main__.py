"""Try a sample of mutants of every subject, and write table and result.

Writes mutations.json and the table of README.md, behind which notes are kept, and names every survivor that is not
explained and every explanation that is not needed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from gymqual.harness.cli.usage import ending
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

NOTES = "\n## "
"""Where notes begin that follow the table."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    names = [subject.name for subject in SUBJECTS]
    codes = {
        0: "every survivor is explained",
        1: "one is not, or what is explained did not survive",
        130: "interrupted",
    }
    parser = argparse.ArgumentParser(
        prog="gymqual bench mutation",
        description=__doc__,
        epilog=ending("gymqual.qualification.studies.mutation --subject manifest --mutants 10", codes),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that gets result and table (default: none)")
    parser.add_argument("--subject", choices=names, action="append", help="only this one; repeat (default: all)")
    parser.add_argument("--mutants", type=int, metavar="N", help="of every subject (default: its own number)")
    parser.add_argument("--seed", default=SEED, help="of the sample (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="keep what is noticed by --out; try its survivors alone")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the copies and what pytest said (default: none)")
    options = parser.parse_args(arguments)
    chosen = options.subject or names
    tried: list[Mutant] = []
    try:
        before = read_sample(options.out).mutants if options.out and (options.out / RESULT).exists() else ()
        known = [mutant for mutant in before if options.again and mutant.subject in chosen]
        others = [mutant for mutant in before if mutant.subject not in chosen]
        explained = [entry for entry in read_explained(FOLDER / EXPLAINED) if entry.subject in chosen]
        with tempfile.TemporaryDirectory(prefix="gymqual-mutation-") as folder:
            for subject in (each for each in SUBJECTS if each.name in chosen):
                place = (options.logs or Path(folder)) / subject.name.replace(" ", "-")
                place.mkdir(parents=True)
                drawn = try_subject(subject, place, _say, seed=options.seed, count=options.mutants, known=known)
                for mutant in drawn:
                    tried.append(mutant)
                    # What an interruption leaves is whole: what was not tried again yet is as it was.
                    left = [each for each in known if each.key not in {other.key for other in tried}]
                    if options.out is not None:
                        _write(options.out, sample(options.seed, [*others, *tried, *left]))
        if options.out is not None:
            _write(options.out, sample(options.seed, [*others, *tried]))
    except (HarnessError, OSError) as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mutation: interrupted; --again goes on with what --out has", file=sys.stderr)
        return 130
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


if __name__ == "__main__":
    sys.exit(main())
