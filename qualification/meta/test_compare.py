"""Comparing runs: differences are named, and scores of different task cores are never set side by side."""

from pathlib import Path

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.compare import compare
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.manifest import RunManifest
from gymqual.harness.records.run_records import GymRecord, StackRecord
from gymqual.qualification.support.commands import run_gymqual

pytestmark = pytest.mark.self_test


def _changed(run: RunManifest, **outcome: str) -> RunManifest:
    checks = tuple(
        record.model_copy(update={"outcome": outcome.get(record.id, record.outcome), "measured": {"figure": 2}})
        for record in run.checks
    )
    return run.model_copy(update={"checks": checks})


def test_a_run_equals_itself(finished_run: Path) -> None:
    """A run compared with itself MUST show no difference and exit 0."""
    compared = run_gymqual("compare", finished_run, finished_run)
    seen = (compared.returncode, [line for line in compared.stdout.splitlines() if "->" in line])
    assert seen == (0, []), explain(
        subject="gymqual compare of a run with itself",
        expected=(0, []),
        got=(seen, compared.stderr),
        cause="something in a manifest is not compared by value",
    )


def test_a_changed_outcome_and_value_are_named(finished_run: Path) -> None:
    """A changed outcome MUST be named and counted, a changed measured value named."""
    run = manifest.read(finished_run)
    result = compare(run, _changed(run, **{"TASK-01": "failed"}))
    told = [line for line in result.lines if line.startswith(("TASK-01:", "measured TASK-01 figure:"))]
    expected = ["TASK-01: passed -> failed", "measured TASK-01 figure: (absent) -> 2"]
    assert (result.same_outcomes, told) == (False, expected), explain(
        subject="a run and its copy with a failed check and a new measured value",
        expected=(False, expected),
        got=(result.same_outcomes, result.lines),
        cause="records are matched by position, or values are not compared",
    )


def test_scores_of_different_cores_are_not_compared(finished_run: Path) -> None:
    """Runs on different task cores MUST show what differs but no measured value, and say why."""
    run = manifest.read(finished_run)
    result = compare(run, _changed(run).model_copy(update={"core": "0" * 64}))
    measured = [line for line in result.lines if line.startswith("measured")]
    assert (measured, "different task cores" in result.refusal) == ([], True), explain(
        subject="measured values of runs on different cores",
        expected="none, and the reason",
        got=(measured, result.refusal),
        cause="figures are compared without looking at what they measure",
    )


STACK = StackRecord(
    name="nemo", version="3.13.14", lock_sha256="1" * 64, platform="linux-x86_64", flags=(), deviation=None
)
GYM = GymRecord(
    gym="nemo", upstream="nemo-gym 0.7.0", upstream_digest="2" * 64, upstream_modified=(), stands_for="",
    python="CPython 3.13.14", core="3" * 64, sources={"app.py": "4" * 64},
)  # fmt: skip
OTHERWISE = {
    "another interpreter": ({"version": "3.13.15"}, {}, "stack nemo"),
    "another lock": ({"lock_sha256": "5" * 64}, {}, "stack nemo"),
    "another platform": ({"platform": "linux-aarch64"}, {}, "stack nemo"),
    "another release": ({}, {"upstream": "nemo-gym 0.7.1"}, "gym nemo"),
    "other bytes of it": ({}, {"upstream_digest": "6" * 64}, "gym nemo"),
    "another source": ({}, {"sources": {"app.py": "7" * 64}}, "gym nemo"),
    "a source more": ({}, {"sources": {"app.py": "4" * 64, "more.py": "8" * 64}}, "gym nemo"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_gym_or_environment_that_differs_is_named(finished_run: Path, name: str) -> None:
    """What differs in a gym or its environment MUST be named, and nothing else."""
    stack, gym, named = OTHERWISE[name]
    run = manifest.read(finished_run).model_copy(update={"stacks": (STACK,), "gyms": (GYM,)})
    other = {"stacks": (STACK.model_copy(update=stack),), "gyms": (GYM.model_copy(update=gym),)}
    told = [line.partition(":")[0] for line in compare(run, run.model_copy(update=other)).lines if " -> " in line]
    assert told == [named], explain(
        subject=f"a run and its copy with {name}",
        expected=[named],
        got=told,
        cause="a part of what a subject is stands in the manifest and is not compared",
    )


def test_a_run_of_broken_subjects_is_no_match(finished_run: Path) -> None:
    """A qualification and a run of broken subjects MUST NOT be compared."""
    run = manifest.read(finished_run)
    broken = run.model_copy(update={"run": run.run.model_copy(update={"mode": "broken"})})
    with pytest.raises(HarnessError) as refused:
        compare(run, broken)
    assert "compare runs of one mode" in str(refused.value), explain(
        subject="comparing two modes",
        expected="compare runs of one mode",
        got=str(refused.value),
        cause="inverted outcomes are taken for outcomes",
    )
