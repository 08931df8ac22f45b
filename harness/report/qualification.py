"""The page of a qualification run: the verdict and why, the subject, every check, and every training in it."""

from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gymqual.harness.records import manifest
from gymqual.harness.records.manifest import RunManifest
from gymqual.harness.records.run_records import CheckRecord
from gymqual.harness.report import document, training
from gymqual.harness.report.agreement import agreements
from gymqual.harness.report.summary import verdict_line

MOST_ROLLOUTS = 6000
"""In one page's viewer; trainings beyond it are named, each to be shown by a page of its own."""
_WORST = ("failed", "not_testable", "passed")
WORDS = {"passed": "passed", "failed": "failed", "not_testable": "not testable"}


def page(folder: Path) -> bytes:
    """Return the page of a run, from its manifest and evidence alone; raises HarnessError."""
    run = manifest.read(folder)
    found, unreadable = training.found_in(folder)
    trainings = sorted(found, key=lambda each: not each.completed)
    viewed, left_out, count = [], [], 0
    for each in trainings:
        rollouts = len(each.seen.episodes.keys() | each.seen.rows.keys())
        if count + rollouts > MOST_ROLLOUTS:
            left_out.append(each)
        else:
            viewed.append(each)
            count += rollouts
    word = verdict_word(run)
    return document.render(
        "qualification.html.j2",
        title=f"{word}: {', '.join(run.registered) or 'no gym'}",
        word=word,
        line=verdict_line(run),
        reasons=reasons(run),
        run=run,
        seconds=_seconds(run),
        totals=totals(run),
        matrix=matrix(run),
        unreadable=unreadable,
        trainings=[training.shown(each, number) for number, each in enumerate(trainings)],
        agreements=list(agreements(trainings)),
        left_out=[each.name for each in left_out],
        viewer=training.viewer(viewed),
        logs=[file.path for file in run.files if file.path.endswith(".log")],
        weight=sum(file.size for file in run.files),
        beside=[name for name in (manifest.MANIFEST, manifest.JUNIT) if (folder / name).is_file()],
    )


def verdict_word(run: RunManifest) -> str:
    """Return the verdict in words: what could not be tried at all is told from what failed."""
    if run.run.mode == "broken":
        return "Self-test as it must be" if run.verdict.qualified else "Self-test failed"
    if run.verdict.qualified:
        return "Qualified"
    outcomes = {record.outcome for record in run.checks}
    return "Not testable" if "not_testable" in outcomes and "failed" not in outcomes else "Not qualified"


def reasons(run: RunManifest) -> list[dict[str, Any]]:
    """Return why a run is not qualified, each with the record that it is about, and that one's case."""
    # As they were decided: those of records first, in the order of the records.
    records = [record for record in run.checks if record.outcome != "passed"]
    told = [
        {"text": reason, "record": record if record and reason.startswith(f"{record.id} ") else None}
        for reason, record in zip_longest(run.verdict.reasons, records[: len(run.verdict.reasons)])
    ]
    for each in told:
        if each["record"]:
            each["text"] = each["text"].replace(each["record"].id, each["record"].case, 1)
    return told


def totals(run: RunManifest) -> dict[str, int]:
    """Return the number of records by outcome."""
    return {
        word: sum(1 for record in run.checks if record.outcome == outcome)
        for outcome, word in WORDS.items()
        if outcome == "passed" or any(record.outcome == outcome for record in run.checks)
    }


def matrix(run: RunManifest) -> dict[str, Any]:
    """Return checks by gym: the worst outcome of each place, and the records behind it."""
    gyms: list[str | None] = [*run.registered, *sorted({c.gym for c in run.checks if c.gym} - run.registered.keys())]
    if any(record.gym is None for record in run.checks):
        gyms.append(None)
    rows = []
    never = {id for ids in run.registered.values() for id in ids} - {record.id for record in run.checks}
    for check in sorted({(record.id, record.must) for record in run.checks} | {(id, "") for id in never}):
        records = [record for record in run.checks if (record.id, record.must) == check]
        cells = [_cell([record for record in records if record.gym == gym]) for gym in gyms]
        missing = [
            gym is not None and cell is None and check[0] in run.registered.get(gym, ())
            for gym, cell in zip(gyms, cells, strict=True)
        ]
        rows.append(
            {
                "id": check[0],
                "must": check[1],
                "cells": list(zip(cells, missing, strict=True)),
                "gyms": [gym or "-" for gym, cell, gone in zip(gyms, cells, missing, strict=True) if cell or gone],
                "records": records,
                "outcome": min((record.outcome for record in records), key=_WORST.index, default="missing"),
                "defects": any(record.defect for record in records),
            }
        )
    return {"gyms": gyms, "rows": rows, "families": sorted({row["id"].rpartition("-")[0] for row in rows})}


def _cell(records: list[CheckRecord]) -> dict[str, Any] | None:
    if not records:
        return None
    outcome = min((record.outcome for record in records), key=_WORST.index)
    seconds = sum(record.duration_s for record in records)
    return {"outcome": outcome, "word": WORDS[outcome], "seconds": seconds, "count": len(records)}


def _seconds(run: RunManifest) -> float:
    return (datetime.fromisoformat(run.run.finished) - datetime.fromisoformat(run.run.started)).total_seconds()
