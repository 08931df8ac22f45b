"""The silent-bug table as a page: a heat map that can be filtered, each bug's curve beside the healthy one.

python -m gymqual.qualification.studies.silent_bugs.page DIR     writes DIR/index.html from DIR/silent-bugs.json
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import write_atomically
from gymqual.harness.records.manifest import PAGE
from gymqual.harness.report import document
from gymqual.qualification.studies.silent_bugs.drawing import LOWEST, smooth
from gymqual.qualification.studies.silent_bugs.evidence import REPLAY, RULES, USUAL, Seen, seen
from gymqual.qualification.studies.silent_bugs.result import SilentBugs

RESULT = "silent-bugs.json"


def page(made: SilentBugs) -> bytes:
    """Return the page of the whole table."""
    rows = seen(made)
    return document.render(
        "silent_bugs.html.j2",
        title="Silent trainer bugs by evidence",
        rows=[_row(row) for row in rows],
        columns=[*USUAL, *RULES, REPLAY],
        caught=sum(row.caught for row in rows),
        well=sum(row.looks_well for row in rows),
        alarms=[each.name for each in made.clean if each.alarm],
        clean=made.clean,
        steps=made.steps,
        under=f"on CPU, policy {made.policy[:12]}, "
        + ", ".join(f"{name} {version}" for name, version in sorted(made.versions.items())),
    )


def _row(row: Seen) -> dict[str, Any]:
    marks = {"intact": row.looks_well, "missed": not row.caught, "half": row.in_half_precision is False}
    return {
        "name": row.fault.name,
        "models": row.fault.models,
        "cells": [*({"kind": "usual", "text": "shows"} if row.usual[kind] else None for kind in USUAL), *_ours(row)],
        "curve": _points(row.training),
        "healthy_curve": _points(row.healthy_training),
        "success": "-" if row.success is None else f"{row.success:.2f} ({row.healthy or 0:.2f})",
        "half": {None: "-", True: "found", False: "missed"}[row.in_half_precision],
        "marks": [mark for mark, holds in marks.items() if holds],
    }


def _ours(row: Seen) -> list[dict[str, str] | None]:
    steps = [(kind, row.ours[kind]) for kind in [*RULES, REPLAY]]
    return [
        None if step is None else {"kind": "shows", "text": "end" if kind == REPLAY else f"step {step}"}
        for kind, step in steps
    ]


def _points(values: Sequence[float]) -> str:
    """Return a running mean as the points of a line in a box of 100 by 24."""
    means = smooth(values)
    across = 100 / max(1, len(means) - 1)
    return " ".join(
        f"{n * across:.1f},{23 - 22 * (max(mean, LOWEST) - LOWEST) / (1 - LOWEST):.1f}" for n, mean in enumerate(means)
    )


def write(folder: Path) -> Path:
    """Write the page of a folder that ``gymqual bench silent-bugs`` left; raises HarnessError."""
    path = folder / RESULT
    try:
        made = SilentBugs.model_validate_json(path.read_bytes())
        write_atomically(folder / PAGE, page(made))
    except ValidationError as error:
        raise HarnessError(f"{path}: {str(error).splitlines()[0]}") from None
    return folder / PAGE
