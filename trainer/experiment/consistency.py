"""Whether the files of an experiment's report belong together: of one plan, and of each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gymqual.gyms.base import read_identity
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.evaluation.evaluate import SEED as TASK_SEED
from gymqual.trainer.evaluation.evaluate import Evaluation
from gymqual.trainer.evaluation.retention import Retention
from gymqual.trainer.experiment.files import (
    BASELINE,
    LOOKS,
    PARITY,
    REPLAY,
    RESUME,
    TEST,
    dev_file,
    retention_file,
    selected,
)
from gymqual.trainer.experiment.plan import Assessment, Plan, RetentionData
from gymqual.trainer.experiment.records import Looks, Parity, Replay
from gymqual.trainer.experiment.resume import Resume
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.learning.result import success_of
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, TrainingRun
from gymqual.trainer.runs.statistics import wilson
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS


def strangers_within(folder: Path, plan: Plan) -> Iterator[str]:
    """Yield what is not of this plan in the files of a report; raises HarnessError for one that cannot be read."""
    adapters: dict[str, dict[int, str | None]] = {BASELINE: {0: None}}
    for arm in plan.arms:
        run = read_result(folder / arm / MANIFEST, TrainingRun)
        if (run.outcome, run.config, run.policy) != (COMPLETED, plan.config(arm), plan.policy):
            yield f"{arm}/{MANIFEST}: another outcome, configuration or policy"
        if run.core != plan.training.core or run.gym.core != run.core:
            yield f"{arm}/{MANIFEST}: another task core"
        if read_identity(run.gym.model_dump()).digest != plan.gyms[arm]:
            yield f"{arm}/{MANIFEST}: another gym"
        if read_result(folder / arm / REPLAY, Replay).manifest != sha256_file(folder / arm / MANIFEST):
            yield f"{arm}/{REPLAY}: of another run"
        yield from _foreign_resume(folder / arm / RESUME, plan)
        adapters[arm] = {step: _saved(run, step, plan) for step in plan.candidates()}
    for owner, found in adapters.items():
        for step, adapter in found.items():
            yield from _foreign(folder / dev_file(owner, step), plan, plan.dev, adapter)
        solved = {step: _solved(folder, owner, step) for step in found}
        chosen = found[selected(solved)]
        looks = [look.adapter for look in read_result(folder / LOOKS, Looks).items if look.owner == owner]
        if set(looks) != {chosen}:
            yield f"{LOOKS}: {owner} was not looked at, or for another adapter"
        yield from _foreign(folder / owner / TEST, plan, plan.test, chosen)
        for data in plan.retention:
            yield from _foreign_retention(folder / retention_file(owner, data), plan, data, chosen)
    yield from _foreign_parity(folder, plan)


def _solved(folder: Path, owner: str, step: int) -> int:
    return success_of(read_result(folder / dev_file(owner, step), Evaluation).temperature_1).solved


def _saved(run: TrainingRun, step: int, plan: Plan) -> str:
    """Return the sha256 of a run's adapter after a step, by its manifest."""
    kept = run.files.get((checkpoints.folder_of(Path(), step) / TENSORS).as_posix())
    last = run.files.get(f"{ADAPTER}/{TENSORS}") if step == plan.training.steps else None
    return kept or last or "none"


def _foreign_resume(path: Path, plan: Plan) -> Iterator[str]:
    made = read_result(path, Resume)
    if (made.steps, made.stopped_after) != (plan.resume_steps, plan.resume_steps // 2):
        yield f"{_told(path)}: of other steps"
    if made.broken or (made.kind == "exact") != (not made.differences):
        yield f"{_told(path)}: its class does not follow from its differences"


def _foreign(path: Path, plan: Plan, what: Assessment, adapter: str | None) -> Iterator[str]:
    made = read_result(path, Evaluation)
    due: dict[str, Any] = {
        "policy": plan.policy.model_dump(),
        "adapter": adapter,
        "gym": "local",
        "core": plan.training.core,
        "tasks": f"v1/{what.split}/{TASK_SEED}/0..{what.episodes - 1}",
        "sampling_seed": what.seed,
        "split": what.split,
        "test_split_consumed": what.split == "test",
    }
    yield from _others(path, made, due)
    for way in (made.temperature_1, made.greedy):
        counted = success_of(way)
        told = (way.episodes, way.solved, way.success, way.interval, sum(way.outcomes.values()))
        if told != (what.episodes, counted.solved, counted.share, counted.interval, counted.episodes):
            yield f"{_told(path)}: its totals do not follow from its episodes"


def _foreign_retention(path: Path, plan: Plan, data: RetentionData, adapter: str | None) -> Iterator[str]:
    made = read_result(path, Retention)
    due: dict[str, Any] = {
        "policy": plan.policy.model_dump(),
        "adapter": adapter,
        "data": data.name,
        "data_sha256": data.sha256,
        "problems": data.problems,
    }
    yield from _others(path, made, due)
    exact, asked = sum(made.correct or ()), len(made.correct or ())
    told = (made.problems, made.exact, made.accuracy, made.interval)
    if told != (asked, exact, exact / max(1, asked), wilson(exact, asked)):
        yield f"{_told(path)}: its totals do not follow from its answers"


def _foreign_parity(folder: Path, plan: Plan) -> Iterator[str]:
    """Yield where the comparison of the arms contradicts their manifests."""
    told = read_result(folder / PARITY, Parity).parity
    if (told is None) != (len(plan.arms) < 2):
        yield f"{PARITY}: the arms are compared, or not, where they should"
    if told is None:
        return
    runs = [read_result(folder / arm / MANIFEST, TrainingRun) for arm in told.arms]
    last = f"{ADAPTER}/{TENSORS}"
    same = tuple(len({run.files.get(name) for run in runs}) == 1 for name in (TRACE, last))
    if same != (told.same_trace, told.same_adapter):
        yield f"{PARITY}: the manifests' digests say otherwise"
    if told.first_difference is None and any(run.tokens.sampled + run.tokens.cut != told.tokens for run in runs):
        yield f"{PARITY}: the manifests count other tokens"


def _others(path: Path, made: BaseModel, due: dict[str, Any]) -> Iterator[str]:
    yield from (f"{_told(path)}: another {name}" for name, value in due.items() if getattr(made, name) != value)


def _told(path: Path) -> str:
    parts = path.parts[-3:] if path.parent.name == "dev" else path.parts[-2:]
    return "/".join(parts)
