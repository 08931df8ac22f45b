"""A manifest in words: one line per documented check, and one for the verdict."""

from collections.abc import Iterator

from gymqual.harness.records import manifest
from gymqual.harness.records.run_records import CheckRecord

WORDS = {"passed": "passed", "failed": "FAILED", "not_testable": "NOT TESTABLE"}


def check_lines(written: manifest.RunManifest) -> Iterator[str]:
    """Yield one line per check of a run, in columns: case, outcome, duration and planted defect."""
    ids = {record.id for record in written.checks}
    gyms = {check: {record.gym for record in written.checks if record.id == check} for check in ids}
    width = max((len(_case(record, gyms)) for record in written.checks), default=0)
    for record in written.checks:
        defect = f"  {record.defect}" if record.defect else ""
        yield f"{_case(record, gyms).ljust(width)} {WORDS[record.outcome]:<13}{record.duration_s:>8.2f} s{defect}"


def _case(record: CheckRecord, gyms: dict[str, set[str | None]]) -> str:
    """Return a check's id, with its gym where the same check examines several."""
    return f"{record.id} {record.gym}" if len(gyms[record.id]) > 1 else record.id


def verdict_line(written: manifest.RunManifest) -> str:
    """Return a run's verdict in one line, as it ends the run and as whoever shows a manifest repeats it."""
    verdict = written.verdict
    if written.run.mode == "broken":
        flagged = sum(1 for record in written.checks if record.outcome == "passed" and record.defect)
        return f"SELF-TEST: {flagged} of {len(written.checks)} cases as they must be" + "".join(
            f"; {reason}" for reason in verdict.reasons
        )
    if not written.registered:
        return "no gym was examined, so nothing is qualified"
    ran = len({(record.id, record.gym) for record in written.checks if record.gym})
    gyms = ", ".join(sorted(written.registered))
    if verdict.qualified:
        return f"QUALIFIED: {gyms}, {ran} checks passed"
    return f"NOT QUALIFIED: {'; '.join(verdict.reasons)}"
