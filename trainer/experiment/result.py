"""What a matched experiment came to: derived from the files of its report alone."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.run_records import GymRecord, Sha256, StrictModel
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.evaluation.evaluate import Evaluation
from gymqual.trainer.evaluation.retention import Retention
from gymqual.trainer.experiment.consistency import strangers_within
from gymqual.trainer.experiment.files import (
    BASELINE,
    LOOKS,
    NOTES,
    PARITY,
    REPLAY,
    RESUME,
    TEST,
    dev_file,
    retention_file,
    selected,
)
from gymqual.trainer.experiment.frozen import PLAN, PROTOCOL
from gymqual.trainer.experiment.plan import Plan, RetentionData, RetentionRule
from gymqual.trainer.experiment.protocol import digest
from gymqual.trainer.experiment.records import Looks, Notes, Parity, Replay
from gymqual.trainer.experiment.resume import Resume
from gymqual.trainer.learning.agreement import Agreement
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.learning.result import HELD, Success, success_of
from gymqual.trainer.runs.manifest import PolicyRecord, TrainingRun
from gymqual.trainer.runs.statistics import paired

SUMMARY = "summary.json"

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


class Candidate(StrictModel):
    """A policy after some steps."""

    step: int
    """Optimizer steps; 0 is the baseline."""
    adapter: Sha256 | None
    dev: Success


class Kept(StrictModel):
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


class Arm(StrictModel):
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


class Summary(StrictModel):
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
