"""Carry a matched experiment out: stage after stage, each once, on from where it was stopped.

    gymqual prepare --experiment DIR
    gymqual experiment DIR [--status | --check]

Resume qualification of every arm, training of every arm, replay audits, selection on dev, one look at the test split,
retention, report. Whatever ends it, a kill or a full disk too, the same command goes on: a finished stage is not run
again, an interrupted training is continued from its newest checkpoint, bit for bit. A frozen input that was changed is
refused. One schedule at a time works on a folder, and one training at a time on an accelerator.

``--check`` derives every figure of a finished report again from the files beside it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from filelock import FileLock, Timeout
from pydantic import BaseModel, RootModel
from rich.console import Console
from rich.table import Table

from gymqual.harness.cli.checks import sigterm_interrupts
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.trainer.experiment import report
from gymqual.trainer.experiment.frozen import read_plan, require_unchanged
from gymqual.trainer.experiment.plan import Plan
from gymqual.trainer.experiment.prepare import retention_folder
from gymqual.trainer.experiment.protocol import digest
from gymqual.trainer.experiment.result import SUMMARY, Summary
from gymqual.trainer.experiment.stages import Experiment, Stage
from gymqual.trainer.learning.card import agreement_words, words
from gymqual.trainer.learning.result import read_result
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.errors import Stopped

LOCK = ".schedule.lock"
HOLDER = ".schedule.pid"
BEGUN = "begun.json"
"""The digest of the plan that the first stage was run by."""
SECONDS = "seconds.json"
"""How long each stage took."""


def run(folder: Path, console: Console, data: Path | None, accepts_inexact: bool) -> Summary:
    """Carry out what is left; raises HarnessError, InfrastructureError, AuditError, and Stopped for a failed stage."""
    plan = read_plan(folder)
    experiment = Experiment(plan, folder, console, data, accepts_inexact)
    with _alone(folder):
        _require_begun_by(plan, folder)
        left = experiment.left()
        if left:
            console.print(f"{len(left)} of {len(list(experiment.stages()))} stages are left")
            with console.status("the frozen inputs"):
                require_unchanged(plan, data, list(dict.fromkeys(stage.gym for stage in left if stage.gym)))
        for stage in left:
            started = time.monotonic()
            stage.run()
            _took(folder, stage, time.monotonic() - started)
            console.print(f"{stage.name}: done in {_seconds(folder)[stage.name]:.0f} s{_rest(experiment, folder)}")
        wrong = report.differences(folder / report.FOLDER)
        if wrong:
            raise Stopped(f"{folder / report.FOLDER}: {wrong[0]}; remove the report, and it is made anew")
    return read_result(folder / report.FOLDER / SUMMARY, Summary)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, with a lock that is gone with its holder; raises HarnessError if another schedule does."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another process"
        with suppress(OSError):
            holder = f"process {(folder / HOLDER).read_text().strip()}"
        raise HarnessError(f"{folder} is being run by {holder}; wait for it, or end it") from None
    try:
        (folder / HOLDER).write_text(str(os.getpid()))
        yield
    finally:
        (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _require_begun_by(plan: Plan, folder: Path) -> None:
    """Hold the plan to the one that the first stage was run by."""
    path = folder / BEGUN
    if not path.is_file():
        write_atomically(path, readable_json({"plan": digest(plan)}))
    elif read_result(path, _Begun).plan != digest(plan):
        raise HarnessError(
            f"{folder}: its plan was changed since it was begun; restore it, or prepare a new experiment"
        )


# ---- progress ---------------------------------------------------------------------------------------------


class _Begun(BaseModel):
    plan: str


class _Seconds(RootModel[dict[str, float]]):
    pass


def _seconds(folder: Path) -> dict[str, float]:
    path = folder / SECONDS
    return read_result(path, _Seconds).root if path.is_file() else {}


def _took(folder: Path, stage: Stage, seconds: float) -> None:
    write_atomically(folder / SECONDS, readable_json({**_seconds(folder), stage.name: round(seconds, 1)}))


def _estimates(experiment: Experiment, folder: Path) -> dict[str, float | None]:
    """Return by stage that is left how many seconds it will take, by those of its kind; None if there are none."""
    taken, stages = _seconds(folder), list(experiment.stages())
    found: dict[str, float | None] = {}
    for stage in experiment.left():
        alike = [other for other in stages if other.kind == stage.kind and other.name in taken]
        size = sum(other.size for other in alike)
        found[stage.name] = sum(taken[other.name] for other in alike) / size * stage.size if alike else None
    return found


def _rest(experiment: Experiment, folder: Path) -> str:
    """Return how much is left in words, as far as it can be known."""
    left = _estimates(experiment, folder)
    if not left:
        return ""
    known = [seconds for seconds in left.values() if seconds is not None]
    unknown = f" and {len(left) - len(known)} of unknown length" if len(known) < len(left) else ""
    return f"; {len(left)} left, about {sum(known) / 60:.0f} min{unknown}"


def show_status(folder: Path, console: Console) -> None:
    """Print every stage, what is done and how long the rest may take; raises HarnessError for no experiment."""
    plan = read_plan(folder)
    experiment = Experiment(plan, folder, console, None, False)
    taken, left = _seconds(folder), _estimates(experiment, folder)
    table = Table("stage", "state", "seconds")
    for stage in experiment.stages():
        if stage.name not in left:
            table.add_row(stage.name, "done", f"{taken[stage.name]:.0f}" if stage.name in taken else "")
        else:
            estimate = left[stage.name]
            table.add_row(stage.name, f"left{_reached(stage)}", "" if estimate is None else f"about {estimate:.0f}")
    console.print(table)
    console.print(_rest(experiment, folder).removeprefix("; ") or "none is left")


def _reached(stage: Stage) -> str:
    kept = sorted((stage.file.parent / checkpoints.FOLDER).glob("step-*")) if stage.kind == "training" else []
    return f", checkpoint of step {int(kept[-1].name.removeprefix('step-'))}" if kept else ""


def check_report(folder: Path, console: Console) -> int:
    """Print what does not hold in a report, or in an experiment's; return the exit code. Raises HarnessError."""
    made = folder if (folder / SUMMARY).is_file() else folder / report.FOLDER
    if not (made / SUMMARY).is_file():
        raise HarnessError(f"{folder} holds no report; an experiment has one when it is carried out")
    wrong = report.differences(made)
    for each in wrong:
        console.print(f"BROKEN  {each}")
    if not wrong:
        console.print(f"held    {made}: every figure, from {len(read_result(made / SUMMARY, Summary).files)} files")
    return 1 if wrong else 0


# ---- the command ------------------------------------------------------------------------------------------


def command(
    folder: Annotated[Path, Parameter(name="DIR", help="An experiment, see gymqual prepare.")],
    /,
    *,
    status: Annotated[bool, Parameter(help="Show what is done and what is left; runs nothing.")] = False,
    check: Annotated[bool, Parameter(help="Derive the report's figures again; DIR may be a report.")] = False,
    retention: Annotated[
        Path | None, Parameter(help="Folder of mgsm_de.tsv and mgsm_en.tsv; GYMQUAL_MGSM without it.")
    ] = None,
    accept_inexact_resume: Annotated[
        bool, Parameter(help="Train although a resumed training is not exact; goes on record.")
    ] = False,
) -> int:
    """Carry out a frozen experiment; returns 1 if a stage failed for what it found, or the report does not hold."""
    if status and check:
        raise HarnessError("--status and --check exclude each other; leave one out")
    console = Console(highlight=False, soft_wrap=True)
    # Trainings in processes of their own have another working directory.
    folder = folder.resolve()
    if status:
        show_status(folder, console)
        return 0
    if check:
        return check_report(folder, console)
    torch.set_num_threads(read_plan(folder).threads)
    with sigterm_interrupts():
        summary = run(folder, console, retention_folder(retention), accept_inexact_resume)
    _show(console, summary, folder)
    return 0


def _show(console: Console, summary: Summary, folder: Path) -> None:
    table = Table("policy", "selected step", "test: strict success", "difference", "p", "retention")
    table.add_row("baseline", "", words(summary.baseline_test), "", "", "")
    for name, arm in summary.arms.items():
        retention = ", ".join(sorted({each.verdict for each in arm.retention}))
        figures = (words(arm.test), f"{arm.difference:+.3f}", f"{arm.p_value:.2g}", retention)
        table.add_row(name, str(arm.selected), *figures)
    console.print(table)
    if summary.parity is not None:
        console.print(agreement_words(summary.parity))
    console.print(f"report: {folder / report.FOLDER / report.CARD}")
