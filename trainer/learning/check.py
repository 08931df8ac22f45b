"""Whether a committed learning result holds: every figure of it derived again from what stands beside it."""

from collections.abc import Sequence
from pathlib import Path

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.trainer.evaluation.evaluate import Evaluation
from gymqual.trainer.learning.agreement import Agreement
from gymqual.trainer.learning.card import readme
from gymqual.trainer.learning.reading import TrainedRun, read_result
from gymqual.trainer.learning.result import (
    AFTER,
    BASELINE,
    CARD,
    FILES,
    SUMMARY,
    Arm,
    Summary,
    due_of,
    evaluated_of,
    settings_of,
    summarise_arm,
)
from gymqual.trainer.runs.manifest import COMPLETED


def differences(folder: Path) -> list[str]:
    """Recompute everything that a committed result claims; return what does not hold, by name."""
    try:
        summary = read_result(folder / SUMMARY, Summary)
    except HarnessError as error:
        return [str(error)]
    wrong = [f"{name}: is not of this result" for name in strangers_in(folder, list(summary.arms))]
    for gym, told in summary.arms.items():
        altered = [f"{gym}/{name}: {text}" for name in FILES if (text := _altered(folder / gym / name, told))]
        wrong += altered or [f"{gym}: {each}" for each in _arm_differences(folder / gym, gym, summary)]
    if summary.agreement is not None and not wrong:
        wrong += _agreement_differences(folder, summary.agreement)
    card = folder / CARD
    if not card.is_file() or card.read_text(encoding="utf-8") != readme(summary):
        wrong.append(f"{CARD}: is not what the summary gives")
    return wrong


def _altered(path: Path, told: Arm) -> str:
    if not path.is_file():
        return "is missing"
    return "" if sha256_file(path) == told.files.get(path.name) else "sha256 is another one"


def strangers_in(folder: Path, gyms: Sequence[str]) -> list[str]:
    """Return the files of a result's folder that no result of these gyms has."""
    known = {SUMMARY, CARD, *(f"{gym}/{name}" for gym in gyms for name in FILES)}
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in found if name not in known]


def _arm_differences(folder: Path, gym: str, summary: Summary) -> list[str]:
    told = summary.arms[gym].model_dump()
    try:
        found = summarise_arm(folder).model_dump()
        run = read_result(folder / MANIFEST, TrainedRun)
        evaluations = {name: read_result(folder / name, Evaluation) for name in (BASELINE, AFTER)}
    except HarnessError as error:
        return [str(error)]
    wrong = [f"{name}: {told[name]} is told, {value} is found" for name, value in found.items() if told[name] != value]
    seen = {**run.config, "outcome": run.outcome, "core": {run.core, run.gym.core}, "policy": run.policy}
    due = {**settings_of(summary.protocol, gym), "outcome": COMPLETED, "core": {summary.core}, "policy": summary.policy}
    wrong += [f"training: another {name}" for name, value in due.items() if seen.get(name) != value]
    for name, adapter in ((BASELINE, None), (AFTER, told["adapter"])):
        evaluated = evaluated_of(evaluations[name])
        wanted = due_of(summary.protocol, summary.policy.weights, summary.core, gym, adapter)
        wrong += [f"{name}: another {each}" for each, value in wanted.items() if evaluated[each] != value]
    return wrong


def _agreement_differences(folder: Path, told: Agreement) -> list[str]:
    runs = [read_result(folder / gym / MANIFEST, TrainedRun) for gym in told.arms]
    same = (len({run.trace for run in runs}) == 1, len({run.adapter for run in runs}) == 1)
    wrong = []
    if same != (told.same_trace, told.same_adapter):
        wrong.append("agreement: the manifests' digests say otherwise")
    # With a difference only what came before it was counted.
    if told.first_difference is None and any(run.tokens.sampled + run.tokens.cut != told.tokens for run in runs):
        wrong.append("agreement: the manifests count other tokens")
    return wrong
