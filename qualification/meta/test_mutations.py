"""Small changes of what judges: checks notice each of a sample, or it is explained why none can."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import NotTestable
from gymqual.qualification.studies.mutation import sampling
from gymqual.qualification.studies.mutation.result import (
    EXPLAINED,
    FOLDER,
    TABLE,
    Explained,
    Mutant,
    faults,
    read_explained,
    read_sample,
    table,
)
from gymqual.qualification.studies.mutation.subjects import SUBJECTS, Subject

pytestmark = pytest.mark.self_test

HOURS = pytest.mark.timeout(2 * 3600)


@pytest.mark.slow
@HOURS
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name.replace(" ", "-"))
def test_every_small_change_is_noticed_or_explained(subject: Subject, tmp_path: Path) -> None:
    """A change of the sample that no check notices MUST be explained, and nothing else MUST be."""
    tried = list(sampling.try_subject(subject, tmp_path, print))
    explained = [entry for entry in read_explained(FOLDER / EXPLAINED) if entry.subject == subject.name]
    wrong = list(faults(tried, explained))
    assert wrong == [], explain(
        subject=f"survivors of {len(tried)} mutants of the {subject.name}",
        expected=f"those of {EXPLAINED}",
        got="\n".join(wrong),
        cause="no check examines what was changed: sharpen one, or explain why none can",
    )


@pytest.mark.slow
def test_a_line_that_moves_leaves_the_sample_as_it_was(tmp_path: Path) -> None:
    """What is drawn MUST depend on what is changed alone: not on its line, its file, or what stands beside it."""
    source = (sampling.ROOT / "trainer/audit/independence.py").read_text(encoding="utf-8")
    drawn = []
    for name, content in {"one.py": source, "other.py": f"# Moved.\n\n\n{source}\n\nMORE = 1\n"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        subject = Subject("draws", (name,), (), 8)
        drawn.append([(each["operator"], each["before"]) for each in sampling.sample_of(subject, tmp_path)])
    assert (drawn[0], len(drawn[0])) == (drawn[1], 8), explain(
        subject="8 mutants of a module, and of the same three lines further down in another file",
        expected=drawn[0],
        got=drawn[1],
        cause="the draw depends on numbers of lines or of mutants, so that any edit gives another sample",
    )


def test_the_committed_table_follows_from_the_committed_result() -> None:
    """The committed table MUST be its result's, with every subject; survivors and explanations MUST be the same."""
    sample, explained = read_sample(FOLDER), read_explained(FOLDER / EXPLAINED)
    told = (FOLDER / TABLE).read_text(encoding="utf-8").startswith(table(sample, explained))
    names = {mutant.subject for mutant in sample.mutants}
    got = (told, names, list(faults(sample.mutants, explained)))
    expected = (True, {subject.name for subject in SUBJECTS}, [])
    assert got == expected, explain(
        subject="whether the table is the result's; subjects; survivors and explanations without the other",
        expected=expected,
        got=got,
        cause="one of the files was edited; run make mutation",
    )


def _mutant(**fields: Any) -> Mutant:
    whole: dict[str, Any] = {
        "subject": "manifest", "module": "m.py", "definition": "f", "operator": "AddNot", "before": "if a:",
        "after": "if not a:", "ended": "passed", "by": "", "seconds": 1.0, **fields,
    }  # fmt: skip
    return Mutant(**whole)


ENTRY = Explained(subject="manifest", operator="AddNot", before="if a:", after="if not a:", reason="a is always true")
JUDGED = {
    "killed": ([_mutant(ended="failed")], [], []),
    "timed out": ([_mutant(ended="timed out")], [], []),
    "explained": ([_mutant()], [ENTRY], []),
    "elsewhere": ([_mutant(module="n.py")], [ENTRY], []),
    "not explained": ([_mutant()], [], ["nothing notices AddNot in m.py: if a:  ->  if not a:"]),
    "of another line": ([_mutant(before="if b:")], [ENTRY], ["nothing notices", "explained, and did not survive"]),
    "noticed by now": ([_mutant(ended="failed")], [ENTRY], ["explained, and did not survive: AddNot: if a:"]),
    "explained twice": ([_mutant()], [ENTRY, ENTRY], ["explained more than once"] * 2),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_survivor_without_explanation_is_named_and_so_is_a_stale_one(name: str) -> None:
    """A survivor that is not explained MUST be named, and an explanation of what did not survive MUST be too."""
    tried, explained, named = JUDGED[name]
    found = list(faults(tried, explained))
    got = [part for part, fault in zip(named, found, strict=False) if part in fault]
    assert (got, len(found)) == (named, len(named)), explain(
        subject=f"faults of a mutant that is {name}",
        expected=named,
        got=found,
        cause="survivors are only counted, or an explanation is looked for by less than its text",
    )


CHECKS = "import product\n\ndef test_it():\n    assert product.answer() == 42\n"
ENDS = {
    "unchanged": ("def answer():\n    return 42\n", ["passed", ""]),
    "wrong": ("def answer():\n    return 41\n", ["failed", "test_product.py::test_it"]),
    "same length": ("def answer():\n    return 43\n", ["failed", "test_product.py::test_it"]),
    "not to be imported": ("def answer(:\n", ["failed", "test_product.py"]),
    "killed": ("import os\n\ndef answer():\n    os.kill(os.getpid(), 9)\n", ["failed", ""]),
    "leaves": ("import os\n\ndef answer():\n    os._exit(1)\n", ["failed", ""]),
    "hangs": ("import time\n\ndef answer():\n    time.sleep(60)\n", ["timed out", ""]),
}


def test_checks_of_a_mutant_see_this_mutant_and_leave_nothing(tmp_path: Path) -> None:
    """Checks MUST run against each mutant in turn and be told as they ended, and the module MUST be as it was."""
    (tmp_path / "product.py").write_text(ENDS["unchanged"][0])
    (tmp_path / "test_product.py").write_text(CHECKS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ["test_product.py", "-p", "no:gymqual.plugin", "-p", "no:cacheprovider"]
    tasks = [
        json.dumps(
            {"module": "product.py", "content": content, "commands": [command], "limit_s": 8, "log": f"{number}.log"}
        )
        for number, (content, _) in enumerate(ENDS.values())
    ]
    ran = subprocess.run(
        [sys.executable, str(sampling.RUNS)], input="\n".join(tasks), cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    got = {name: [each["ended"], each["by"]] for name, each in zip(ENDS, answers, strict=True)}
    got["left"] = [(tmp_path / "product.py").read_text()]
    expected = {**{name: due for name, (_, due) in ENDS.items()}, "left": [ENDS["unchanged"][0]]}
    assert got == expected, explain(
        subject="how the checks of each mutant ended, which of them noticed first, and the module behind them",
        expected=expected,
        got=got,
        cause="a mutant's checks run another one's code, or the end of a process is taken for a pass",
    )


def test_without_the_tool_the_sample_is_not_testable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without cosmic-ray the sample MUST be called not testable, with the command that brings it."""
    monkeypatch.setattr(sampling, "ENVIRONMENT", tmp_path / "none")
    with pytest.raises(NotTestable) as refused:
        sampling.sample_of(SUBJECTS[0], sampling.ROOT)
    said = str(refused.value)
    assert (said.startswith("Not testable: "), "make setup-mutation" in said) == (True, True), explain(
        subject="drawing a sample where no cosmic-ray is",
        expected="Not testable: ... run `make setup-mutation`",
        got=said,
        cause="a missing tool passes, or ends with a traceback",
    )
