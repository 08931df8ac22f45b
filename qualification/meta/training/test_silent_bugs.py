"""The silent-bug table: what is committed follows from its measurements, and each bug breaks the rules it names."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel
from rich.console import Console

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.qualification.broken.trainers import CATALOGUE
from gymqual.qualification.studies.silent_bugs import drawing, page, trainings
from gymqual.qualification.studies.silent_bugs import study as command
from gymqual.qualification.studies.silent_bugs.clean_runs import CLEAN
from gymqual.qualification.studies.silent_bugs.evidence import seen
from gymqual.qualification.studies.silent_bugs.result import SilentBugs, Study

pytestmark = [pytest.mark.self_test, pytest.mark.filterwarnings("ignore")]

COMMITTED = ROOT / "reports" / "sample" / "silent-bugs"


@pytest.fixture(scope="module")
def committed() -> SilentBugs:
    """The committed measurements."""
    return SilentBugs.model_validate_json((COMMITTED / page.RESULT).read_bytes())


def test_the_committed_table_and_map_follow_from_its_measurements(committed: SilentBugs, tmp_path: Path) -> None:
    """Table and map MUST be the bytes that are drawn from the committed measurements."""
    drawing.write(committed, tmp_path)
    names = (drawing.TABLE, drawing.MAP)
    differing = [name for name in names if (tmp_path / name).read_bytes() != (COMMITTED / name).read_bytes()]
    assert differing == [], explain(
        subject="files in reports/sample/silent-bugs that are not drawn from its measurements",
        expected=[],
        got=differing,
        cause="one of them was edited, or another version draws otherwise; run gymqual bench silent-bugs",
    )


def test_the_committed_measurements_are_of_the_whole_catalogue(committed: SilentBugs) -> None:
    """Every bug MUST stand in the table in both precisions and with all its curves, caught or missed."""
    bugs = [(name, precision) for precision in ("fp32", "bf16") for name in CATALOGUE]
    curves = [(name, seed) for name in [*command.baselines(), *CATALOGUE] for seed in command.SEEDS]
    runs = [run.name for run in CLEAN]
    have = (
        [(each.fault, each.precision) for each in committed.studies],
        [(each.fault, each.seed) for each in committed.curves],
        [each.name for each in committed.clean],
    )
    missing = [sorted(map(str, set(due) ^ set(got))) for due, got in zip((bugs, curves, runs), have, strict=True)]
    assert missing == [[], [], []], explain(
        subject="bugs, curves and clean trainings that are in one of catalogue and table",
        expected=[[], [], []],
        got=missing,
        cause="the catalogue has changed since the table was made; run gymqual bench silent-bugs",
    )


def test_the_committed_figures_meet_their_goals(committed: SilentBugs) -> None:
    """At least 95 % of the bugs MUST be found within four steps, and no clean training accused."""
    missed = [figure for figure in command.figures(committed) if not figure.met]
    assert missed == [], explain(
        subject="figures of the committed table that miss their goal",
        expected=[],
        got=missed,
        cause="a rule was loosened, or a band is narrower than clean trainings are",
    )


def test_what_is_missed_stays_in_the_table(committed: SilentBugs) -> None:
    """A bug that no evidence of ours shows MUST stand in the table as missed."""
    silent = sorted(row.fault.name for row in seen(committed) if not row.caught)
    lines = drawing.table(committed).splitlines()
    told = sorted(line.split("`")[1] for line in lines if line.startswith("| `") and " | **missed** | " in line)
    due = sorted(name for name, fault in CATALOGUE.items() if not fault.check)
    assert (silent, [name for name in due if name not in told]) == (due, []), explain(
        subject="bugs that nothing of ours shows; those of them that the table does not call missed",
        expected=(due, []),
        got=(silent, told),
        cause="a bug without an owner was left out, or one with an owner is not found any more",
    )


def test_what_was_finished_is_not_done_again(tmp_path: Path) -> None:
    """An interrupted bench MUST go on where it was, and do again what other sources had made."""
    calls: list[str] = []
    unit = command.Unit("study-HalfTheLoss-fp32", "one", Study, trainings.study, ("HalfTheLoss", "fp32"))
    console = Console(quiet=True)

    def stamp() -> int:
        return os.stat(tmp_path / f"{unit.name}.json").st_mtime_ns

    first = command.run([unit], tmp_path, 1, console)
    made = stamp()
    again: dict[str, BaseModel] = command.run([unit], tmp_path, 1, console)
    calls.append("kept" if stamp() == made and again == first else "done again")
    command.run([replace(unit, key="two")], tmp_path, 1, console)
    calls.append("kept" if stamp() == made else "done again")
    assert calls == ["kept", "done again"], explain(
        subject="a finished training with the same sources; with others",
        expected=["kept", "done again"],
        got=calls,
        cause="results are kept by name alone, or not at all",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_bug_breaks_exactly_the_rules_that_it_names(name: str) -> None:
    """Unstopped, a bug MUST be found within four steps by the rules of its entry, and by no other."""
    fault = CATALOGUE[name]
    studied = trainings.study(name, "fp32")
    missing = [claim for claim in fault.claims if claim not in studied.claims]
    assert (sorted(studied.found), missing) == (sorted(fault.rules), []), explain(
        subject=f"rules that {name} breaks; claims of the replay that should break and hold",
        expected=(sorted(fault.rules), []),
        got=(studied.found, missing),
        cause=f"an audit is blind to it, or accuses it of something else: {studied.words}",
    )
