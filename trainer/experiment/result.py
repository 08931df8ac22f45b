"""What a matched experiment came to: derived from the files of its report alone."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gymqual.gyms.base import read_identity
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.run_records import GymRecord, Sha256
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.evaluation.evaluate import SEED as TASK_SEED
from gymqual.trainer.evaluation.evaluate import Evaluation
from gymqual.trainer.evaluation.retention import Retention
from gymqual.trainer.experiment.files import (
    BASELINE,
    LOOKS,
    NOTES,
    REPLAY,
    RESUME,
    TEST,
    dev_file,
    retention_file,
    selected,
)
from gymqual.trainer.experiment.frozen import PLAN, PROTOCOL
from gymqual.trainer.experiment.plan import Assessment, Plan, RetentionData, RetentionRule
from gymqual.trainer.experiment.protocol import digest
from gymqual.trainer.experiment.resume import Resume
from gymqual.trainer.learning.result import HELD, Agreement, Success, read_result, success_of
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, PolicyRecord, TrainingRun
from gymqual.trainer.runs.statistics import paired, wilson
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS

SUMMARY = "summary.json"
PARITY = "parity.json"

LIMITS = (
    "One policy, one seed: that learning is possible, not how much to expect.",
    "The arms serve one task core to one seed: they are one experiment through two services, not two.",
    "A synthetic development task and a policy whose errors were engineered to be corrected (see its card).",
    "Held-out means new records with known wording. Dev selects; an experiment looks at test once.",
    "The embedded policies know no school mathematics: before and after, exact answers are chance and the "
    "log-likelihood is worse than a uniform guess. Their retention shows the procedure, not what a model forgets.",
    "Sums of floats depend on processor and library builds: elsewhere other ids may be sampled, with other figures.",
    "Traces, checkpoints and adapters are not in the report: their digests stand in each arm's manifest.",
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Candidate(_Model):
    """A policy after some steps."""

    step: int
    """Optimizer steps; 0 is the baseline."""
    adapter: Sha256 | None
    dev: Success


class Kept(_Model):
    """One file of problems, asked before and after."""

    data: str
    problems: int
    exact: tuple[int, int]
    nats: tuple[float, float]
    """Negative log-likelihood a token."""
    gained: int
    lost: int
    p_value: float
    verdict: Literal["kept", "lost", "nothing to lose"]
    """By the plan's rule."""


class Arm(_Model):
    """What came of one gym's training."""

    gym: GymRecord
    resume: Literal["exact", "same ids", "diverges"]
    training_success: tuple[float, ...]
    """Share of strict success among each step's rollouts: no held-out score."""
    varied_groups: int
    groups: int
    sampled_tokens: int
    seconds: float
    """Wall time of training, of its last part if it was interrupted; not derivable."""
    candidates: tuple[Candidate, ...]
    selected: int
    test: Success
    greedy: Success
    gained: int
    lost: int
    difference: float
    p_value: float
    """Exact two-sided McNemar test over the pairs of the test split."""
    significant_rise: bool
    retention: tuple[Kept, ...]
    replay_held: int
    """Claims of the training run that the replay audit derived again."""
    replay_others: tuple[str, ...]
    manifest: Sha256
    trace: Sha256


class Summary(_Model):
    """Everything that a matched experiment claims."""

    format: Literal["gymqual.experiment-result/1"] = "gymqual.experiment-result/1"
    plan: Sha256
    policy: PolicyRecord
    device: str
    versions: dict[str, str]
    baseline: Candidate
    baseline_test: Success
    baseline_greedy: Success
    arms: dict[str, Arm]
    parity: Agreement | None
    """Whether the arms sampled the same ids; null with one arm."""
    looks: dict[str, int]
    """How often the test split was looked at, by whose policy: more than once if it was interrupted."""
    notes: tuple[str, ...]
    """What was not planned, or is allowed."""
    limits: tuple[str, ...]
    files: dict[str, Sha256]
    """sha256 of the report's other files, by path."""


def files_of(plan: Plan) -> list[Path]:
    """Return the files of a report that a summary is made of, in order."""
    owners = (BASELINE, *plan.arms)
    found = [Path(PLAN), Path(PROTOCOL), Path(NOTES), Path(LOOKS), Path(PARITY), dev_file(BASELINE)]
    found += [Path(arm) / name for arm in plan.arms for name in (RESUME, MANIFEST, REPLAY)]
    found += [dev_file(arm, step) for arm in plan.arms for step in plan.candidates()]
    found += [Path(owner) / TEST for owner in owners]
    return found + [retention_file(owner, data) for owner in owners for data in plan.retention]


class Notes(_Model):
    """What was not planned."""

    items: tuple[str, ...] = ()


class Look(_Model):
    """One look at the test split."""

    owner: str
    adapter: Sha256 | None


class Looks(_Model):
    """Every look at the test split, put down before it."""

    items: tuple[Look, ...] = ()


class Replay(_Model):
    """What the replay audit of a training run said."""

    manifest: Sha256
    """Of the run that it was asked of."""
    lines: tuple[str, ...]


class Parity(_Model):
    """The comparison of the arms' traces."""

    parity: Agreement | None


def summarise(folder: Path, plan: Plan) -> Summary:
    """Return what the files of a report say; raises HarnessError for one that is not of this experiment."""
    wrong = next(strangers_within(folder, plan), None)
    if wrong is not None:
        raise HarnessError(f"{folder}: {wrong}")
    before = read_result(folder / BASELINE / TEST, Evaluation)
    return Summary(
        plan=digest(plan),
        policy=plan.policy,
        device=plan.device,
        versions=plan.versions,
        baseline=_candidate(folder, BASELINE, 0),
        baseline_test=success_of(before.temperature_1),
        baseline_greedy=success_of(before.greedy),
        arms={arm: _arm(folder, arm, plan, before) for arm in plan.arms},
        parity=read_result(folder / PARITY, Parity).parity,
        looks=dict(Counter(look.owner for look in read_result(folder / LOOKS, Looks).items)),
        notes=(*plan.notes, *_deviations(folder, plan), *read_result(folder / NOTES, Notes).items),
        limits=LIMITS,
        files={path.as_posix(): sha256_file(folder / path) for path in files_of(plan)},
    )


def _deviations(folder: Path, plan: Plan) -> Iterator[str]:
    for arm in plan.arms:
        run = read_result(folder / arm / MANIFEST, TrainingRun)
        yield from (text for text in run.deviations if text not in plan.notes)


def _arm(folder: Path, arm: str, plan: Plan, before: Evaluation) -> Arm:
    run = read_result(folder / arm / MANIFEST, TrainingRun)
    after = read_result(folder / arm / TEST, Evaluation)
    candidates = tuple(_candidate(folder, arm, step) for step in plan.candidates())
    pairs = paired(before.temperature_1.strict, after.temperature_1.strict)
    lines = read_result(folder / arm / REPLAY, Replay).lines
    return Arm(
        gym=run.gym,
        resume=read_result(folder / arm / RESUME, Resume).kind,
        training_success=tuple(step.strict for step in run.steps),
        varied_groups=run.varied_groups,
        groups=sum(step.groups for step in run.steps),
        sampled_tokens=run.tokens.sampled,
        seconds=run.seconds,
        candidates=candidates,
        selected=selected({each.step: each.dev.solved for each in candidates}),
        test=success_of(after.temperature_1),
        greedy=success_of(after.greedy),
        gained=pairs.gained,
        lost=pairs.lost,
        difference=pairs.difference,
        p_value=pairs.p_value,
        significant_rise=pairs.rose,
        retention=tuple(_kept(folder, arm, data, plan.retention_rule) for data in plan.retention),
        replay_held=sum(line.startswith(HELD) for line in lines),
        replay_others=tuple(line for line in lines if not line.startswith(HELD)),
        manifest=sha256_file(folder / arm / MANIFEST),
        trace=run.files[TRACE],
    )


def _candidate(folder: Path, owner: str, step: int) -> Candidate:
    made = read_result(folder / dev_file(owner, step), Evaluation)
    return Candidate(step=step, adapter=made.adapter, dev=success_of(made.temperature_1))


def _kept(folder: Path, arm: str, data: RetentionData, rule: RetentionRule) -> Kept:
    before, after = (read_result(folder / retention_file(owner, data), Retention) for owner in (BASELINE, arm))
    pairs = paired(before.correct or [], after.correct or [])
    fell = pairs.lost > pairs.gained and pairs.p_value < rule.significance
    knew = before.nll_per_token < rule.uniform_nats
    fell = fell or (knew and after.nll_per_token - before.nll_per_token > rule.nats)
    return Kept(
        data=data.name,
        problems=data.problems,
        exact=(sum(before.correct or []), sum(after.correct or [])),
        nats=(before.nll_per_token, after.nll_per_token),
        gained=pairs.gained,
        lost=pairs.lost,
        p_value=pairs.p_value,
        verdict="lost" if fell else "kept" if knew else "nothing to lose",
    )


# ---- whether the files belong together ------------------------------------------------------------------------


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
        solved = {step: _candidate(folder, owner, step).dev.solved for step in found}
        chosen = found[selected(solved)]
        looks = [look.adapter for look in read_result(folder / LOOKS, Looks).items if look.owner == owner]
        if set(looks) != {chosen}:
            yield f"{LOOKS}: {owner} was not looked at, or for another adapter"
        yield from _foreign(folder / owner / TEST, plan, plan.test, chosen)
        for data in plan.retention:
            yield from _foreign_retention(folder / retention_file(owner, data), plan, data, chosen)
    yield from _foreign_parity(folder, plan)


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
