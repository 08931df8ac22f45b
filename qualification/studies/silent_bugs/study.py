"""Run the fault catalogue and clean trainings, and write the silent-bug table.

    gymqual bench silent-bugs --out DIR [--quick]

``--quick`` leaves out the trainings of forty steps. What was finished is kept in DIR/work and not done again while
the sources stay the same. Prints one JSON object a line; the last ones are the figures of ``gymqual bench``.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import Parameter
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gymqual.gyms import loaded
from gymqual.harness.cli.bench import console, require_folder, show
from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.figures import Figure
from gymqual.harness.records.files import ROOT, readable_json, sha256_file, write_atomically
from gymqual.harness.records.manifest import PAGE
from gymqual.qualification.broken.trainers import CATALOGUE
from gymqual.qualification.studies.silent_bugs import drawing, page, trainings
from gymqual.qualification.studies.silent_bugs.clean_runs import CLEAN
from gymqual.qualification.studies.silent_bugs.evidence import seen, settings_key
from gymqual.qualification.studies.silent_bugs.result import HEALTHY, Clean, Curve, SilentBugs, Study
from gymqual.trainer.policy.loading import load_policy

SEEDS = (1, 2, 3)
BOUND_S = 900
"""For any single training of the table."""
UNAUDITED = (
    "evaluation/evaluate",
    "evaluation/rollout",
    "grpo/environment",
    "grpo/trainer",
    "policy/loading",
    "policy/mini",
    "policy/transcripts",
    "runs/config",
)
"""Modules of the trainer that a training without audit is made of."""
SOURCES = (
    "trainer/*/*.py",
    "qualification/broken/faults/*.py",
    "qualification/studies/silent_bugs/t*.py",
)


@dataclass(frozen=True)
class Unit:
    """One training, and where its result is kept."""

    name: str
    key: str
    """Digest of what the result depends on: it is done again if that has changed."""
    model: type[BaseModel]
    function: Callable[..., BaseModel]
    arguments: tuple[Any, ...]


def units(quick: bool) -> list[Unit]:
    """Return every training of the table, those that take longest first."""
    made, key = [], sources()
    if not quick:
        made += [
            Unit(f"curve-{name.replace(' ', '-')}-{seed}", curve_sources(name), Curve, trainings.curve, (name, seed))
            for name in [*baselines(), *CATALOGUE]
            for seed in SEEDS
        ]
    for run in CLEAN:
        made.append(Unit(f"clean-{run.name}", key, Clean, trainings.clean, (run.name, run.gym, run.settings)))
    for precision in ("fp32", "bf16"):
        made += [Unit(f"study-{n}-{precision}", key, Study, trainings.study, (n, precision)) for n in CATALOGUE]
    return made


def baselines() -> list[str]:
    """Return one healthy trainer for every setting and gym that a bug of the catalogue is trained with."""
    first: dict[str, str] = {}
    for fault in CATALOGUE.values():
        first.setdefault(settings_key(fault.name), f"{HEALTHY} of {fault.name}")
    return list(first.values())


def sources() -> str:
    """Return one digest over everything that a result depends on and that may be edited."""
    files = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    listed = "\n".join(f"{path.relative_to(ROOT)} {sha256_file(path)}" for path in files)
    return hashlib.sha256(f"{listed}\n{loaded.core_on_disk()}".encode()).hexdigest()


def curve_sources(name: str) -> str:
    """Return the same for a long training, which no audit looks at: its own modules, the bug, its settings."""
    fault = CATALOGUE[name.removeprefix(f"{HEALTHY} of ")]
    texts = [sha256_file(ROOT / "trainer" / f"{module}.py") for module in UNAUDITED]
    texts += [inspect.getsource(trainings.curve), str(trainings.CURVE), settings_key(name), loaded.core_on_disk()]
    if not name.startswith(HEALTHY):
        source = inspect.getsource(fault.trainer)
        texts.append(source[source.index("class ") :])
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def run(chosen: Sequence[Unit], work: Path, jobs: int, console: Console) -> dict[str, BaseModel]:
    """Run what is not there yet, in processes of their own; raises HarnessError naming a training that broke."""
    done = {unit.name: result for unit in chosen if (result := _kept(unit, work)) is not None}
    left = [unit for unit in chosen if unit.name not in done]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("trainings", total=len(chosen), completed=len(done))
        others = set(psutil.Process().children())
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=trainings.begin_worker)
        futures: dict[Future[BaseModel], Unit] = {pool.submit(unit.function, *unit.arguments): unit for unit in left}
        try:
            for future in _as_they_end(futures):
                unit = futures[future]
                try:
                    result = done[unit.name] = future.result()
                except Exception as error:
                    raise HarnessError(f"{unit.name}: {type(error).__name__}: {error}") from None
                kept = {"key": unit.key, "result": result.model_dump(mode="json")}
                write_atomically(work / f"{unit.name}.json", readable_json(kept))
                progress.console.print(f"{unit.name} done ({len(done)} of {len(chosen)})")
                progress.advance(bar)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            # One that hangs, or that nobody waits for any more, would be waited for at exit.
            for child in set(psutil.Process().children()) - others:
                child.kill()
    return done


def _as_they_end(futures: dict[Future[BaseModel], Unit]) -> Iterator[Future[BaseModel]]:
    """Yield futures as they are done; raises HarnessError naming what runs if none ends within the bound of one."""
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=BOUND_S, return_when=FIRST_COMPLETED)
        if not ended:
            running = ", ".join(futures[each].name for each in left if each.running())
            raise HarnessError(f"no training ended within {BOUND_S} s; running are {running}")
        yield from ended


def _kept(unit: Unit, work: Path) -> BaseModel | None:
    try:
        kept = json.loads((work / f"{unit.name}.json").read_bytes())
        return unit.model.model_validate(kept["result"]) if kept["key"] == unit.key else None
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def command(
    *,
    out: Annotated[Path, Parameter(help="Folder that gets table and page.")] = Path("reports/silent-bugs"),
    quick: Annotated[bool, Parameter(help="Without the trainings of forty steps.")] = False,
    jobs: Annotated[int, Parameter(help="Processes.")] = min(2, os.cpu_count() or 1),
) -> int:
    """Train every planted trainer bug and clean trainings, and write the table of what finds them."""
    require_at_least_one("--jobs", jobs)
    require_folder(out)
    trainings.quiet()
    made = measured(out, quick, jobs, Console(stderr=True, highlight=False, soft_wrap=True))
    write_atomically(out / page.RESULT, readable_json(made.model_dump(mode="json")))
    drawing.write(made, out)
    write_atomically(out / PAGE, page.page(made))
    console.print(f"written to {out}")
    return show(figures(made))


def measured(out: Path, quick: bool, jobs: int, console: Console) -> SilentBugs:
    """Run everything that is asked for; raises HarnessError."""
    chosen = units(quick)
    done = run(chosen, out / "work", jobs, console)
    results = [done[unit.name] for unit in chosen]
    return SilentBugs(
        versions={name: version(name) for name in ("torch", "transformers", "trl", "peft")},
        core=loaded.core_on_disk(),
        policy=load_policy(trainings.POLICY).identity.weights,
        sources=sources(),
        baseline=None if quick else trainings.baseline(),
        studies=[each for each in results if isinstance(each, Study)],
        clean=[each for each in results if isinstance(each, Clean)],
        curves=[each for each in results if isinstance(each, Curve)],
    )


def figures(made: SilentBugs) -> list[Figure]:
    """Return the figures that the table is held to."""
    rows = seen(made)
    missed = [row.fault.name for row in rows if not row.caught]
    half = [row.fault.name for row in rows if row.in_half_precision is False]
    well = sum(row.looks_well for row in rows)
    alarms = [each.name for each in made.clean if each.alarm]
    steps, count = made.steps, len(rows)
    return [
        Figure(f"bugs missed within {steps} steps", 100 * len(missed) / count, 5, "%", _of(missed, count)),
        Figure(f"bugs missed within {steps} steps, bf16", 100 * len(half) / count, inf, "%", _of(half, count)),
        Figure("clean trainings that were accused", len(alarms), 0, "runs", _of(alarms, len(made.clean))),
        Figure(
            "bugs that the usual evidence does not show",
            100 * well / count,
            inf,
            "%",
            f"{well} of {count}" + ("" if made.curves else ", learning curves not looked at"),
        ),
    ]


def _of(names: Sequence[str], count: int) -> str:
    return f"{len(names)} of {count}" + (f": {', '.join(names)}" if names else "")
