"""The report of a matched experiment: a folder of small files that every figure can be derived from again."""

import shutil
from collections.abc import Collection
from pathlib import Path

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.manifest import MANIFEST, PAGE
from gymqual.trainer.experiment.card import CARD, card
from gymqual.trainer.experiment.curves import CURVES, draw
from gymqual.trainer.experiment.files import NOTES, PARITY, RUN
from gymqual.trainer.experiment.frozen import read_plan
from gymqual.trainer.experiment.plan import Plan
from gymqual.trainer.experiment.records import Notes, Parity
from gymqual.trainer.experiment.result import SUMMARY, Summary, files_of, summarise
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.learning.result import compare_runs

FOLDER = "report"
_MADE = ".report"


def write(plan: Plan, experiment: Path) -> Summary:
    """Write an experiment's report, whole or not at all; raises HarnessError for results that do not fit together."""
    folder, final = experiment / _MADE, experiment / FOLDER
    if final.exists() and (strange := _strangers(final, {path.as_posix() for path in files_of(plan)})):
        raise HarnessError(f"{final} holds {strange[0]}, which is of no report; move it away")
    shutil.rmtree(folder, ignore_errors=True)
    for path in files_of(plan):
        source = experiment / path
        if path.name == MANIFEST:
            source = experiment / path.parent / RUN / MANIFEST
        if path.name == NOTES and not source.is_file():
            write_atomically(folder / path, readable_json(Notes().model_dump(mode="json")))
        elif path.name != PARITY:
            write_atomically(folder / path, source.read_bytes())
    parity = compare_runs({arm: experiment / arm / RUN for arm in plan.arms})
    write_atomically(folder / PARITY, readable_json(Parity(parity=parity).model_dump(mode="json")))
    summary = summarise(folder, plan)
    write_atomically(folder / CURVES, draw(summary))
    write_atomically(folder / CARD, card(summary, plan).encode())
    write_atomically(folder / SUMMARY, readable_json(summary.model_dump(mode="json")))
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    return summary


def differences(folder: Path) -> list[str]:
    """Derive everything that a report claims again; return what does not hold, by name."""
    try:
        plan, told = read_plan(folder), read_result(folder / SUMMARY, Summary)
        altered = list(_altered(folder, told))
        if altered:
            return altered
        found = summarise(folder, plan)
    except HarnessError as error:
        return [str(error)]
    wrong = [name for name in Summary.model_fields if getattr(told, name) != getattr(found, name)]
    made = {CARD: card(found, plan).encode(), CURVES: draw(found)}
    return [f"{SUMMARY}: another {name} is found" for name in wrong] + [
        f"{name}: is not what the summary gives"
        for name, content in made.items()
        if not (folder / name).is_file() or (folder / name).read_bytes() != content
    ]


def _strangers(folder: Path, own: Collection[str]) -> list[str]:
    """Return the files of a folder that no report has."""
    known = {*own, SUMMARY, CARD, CURVES, PAGE}
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in found if name not in known]


def _altered(folder: Path, told: Summary) -> list[str]:
    """Return files that are missing, changed, or of no report."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    strange = _strangers(folder, told.files)
    changed = [
        f"{name}: {'sha256 is another one' if name in present else 'is missing'}"
        for name, digest in told.files.items()
        if name not in present or sha256_file(folder / name) != digest
    ]
    return changed + [f"{name}: is not of this report" for name in strange]
