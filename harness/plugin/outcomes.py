"""What counts as passed: every documented check's record, inverted where a defect is planted that it must flag."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymqual.harness.plugin.items import EVIDENCE, check_in, gym_of, planted_in
from gymqual.harness.plugin.registry import Check, Planted
from gymqual.harness.records.errors import HarnessError, NotTestable

_RECORD = pytest.StashKey[dict[str, Any]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Judge a planted defect, and let a check's record grow with each phase of its item."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, HarnessError):
        # Its text is the whole story; a traceback through the harness would bury it.
        report.longrepr = str(error)
    planted = planted_in(item)
    if planted and call.when == "call":
        _judge_planted(item, call, report, planted)
    check = check_in(item)
    if check is not None:
        record = item.stash.setdefault(_RECORD, _new_record(item, check, planted))
        record["duration_s"] = round(record["duration_s"] + report.duration, 3)
        if report.failed and record["outcome"] == "passed":
            record["outcome"] = "not_testable" if isinstance(error, NotTestable) else "failed"
            record["message"] = _short(report)
        if call.when == "teardown":
            shown = item.stash.get(EVIDENCE, None)
            if shown is not None:
                record |= {"measured": shown.measured, "files": shown.files}
            # A plain attribute of a report travels from a parallel worker as it is.
            report.gymqual_record = record  # type: ignore[attr-defined]
    return report  # type: ignore[return-value]


def _judge_planted(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, planted: Planted) -> None:
    if not planted.must_flag:
        if report.failed:
            report.longrepr = f"disturbed by its neighbour's defect {planted.defect!r}:\n{report.longreprtext}"
        return
    if call.excinfo is None:
        report.outcome = "failed"
        report.longrepr = f"the check cannot fail: it passed a subject with the defect {planted.defect!r}"
        return
    last = call.excinfo.traceback[-1]
    own = call.excinfo.errisinstance(AssertionError) and Path(str(last.path)) == item.path
    if own:
        report.outcome = "passed"
        report.longrepr = None
        report.sections.append(("flagged", str(call.excinfo.value)))
    else:
        report.longrepr = f"failed under {planted.defect!r}, but not at its own assertion:\n{report.longreprtext}"


def _new_record(item: pytest.Item, check: Check, planted: Planted | None) -> dict[str, Any]:
    return {
        "id": check.id,
        "must": check.must,
        "gym": gym_of(item),
        "test": item.nodeid,
        "outcome": "passed",
        "duration_s": 0.0,
        "defect": planted.label if planted else None,
    }


def _short(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else report.longreprtext)[:2000]
    # A message may quote anything; half a character is no JSON.
    return text.encode("utf-8", "backslashreplace").decode()


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Call a missing prerequisite what it is, instead of an error."""
    if report.when == "setup" and report.failed and report.longreprtext.startswith("Not testable: "):
        return "error", "N", "NOT TESTABLE"
    return None
