"""What the manifest claims, each against what the evidence comes to."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from gymqual.gyms.loaded import core_on_disk, same_core
from gymqual.trainer.replay.episodes import judged, shaped
from gymqual.trainer.replay.evidence import Evidence
from gymqual.trainer.replay.steps import close
from gymqual.trainer.replay.tokens import due_mask, rebuilt_rows
from gymqual.trainer.runs.manifest import COMPLETED, step_record
from gymqual.trainer.runs.tensors import compare_tensors


def identity_faults(evidence: Evidence) -> Iterator[str]:
    """Gym, trainer and this audit judge by the same task core, the one that is frozen here."""
    here = core_on_disk()
    for name, core in (
        ("run", evidence.run.core),
        ("gym", evidence.run.gym.core),
        ("configured", evidence.config.core),
    ):
        if not same_core(core, here) and (name != "configured" or core):
            yield f"{name} core {core[:16]}, here it is {here[:16]}"
    if evidence.run.gym.gym != evidence.config.gym:
        yield f"gym {evidence.run.gym.gym}, configured {evidence.config.gym}"
    if evidence.config.policy_weights not in ("", evidence.run.policy.weights):
        yield f"policy weights {evidence.run.policy.weights[:16]}, configured {evidence.config.policy_weights[:16]}"
    if evidence.run.outcome != COMPLETED and not evidence.run.outcome.startswith("stopped: "):
        yield f"outcome {evidence.run.outcome!r} is neither completed nor stopped"


def token_faults(evidence: Evidence) -> Iterator[str]:
    """Token totals: sampled and trained, external and excluded, cut."""
    rebuilt = [made for _, made in rebuilt_rows(evidence) if made is not None]
    due = {
        "sampled": sum(sum(due_mask(evidence, row, made)) for row, made in rebuilt_rows(evidence) if made is not None),
        "external": sum(made.mask.count(0) for made in rebuilt),
        "cut": sum(made.cut for made in rebuilt),
    }
    yield from _differing(evidence.run.tokens.model_dump(), due)


def consumption_faults(evidence: Evidence) -> Iterator[str]:
    """Rollouts of each task."""
    due = Counter(evidence.episodes[rollout].task_id for rollout in evidence.rows if rollout in evidence.episodes)
    yield from _differing(evidence.run.consumed_tasks, dict(due))


def replay_faults(evidence: Evidence) -> Iterator[str]:
    """Episodes and observations held against the core, and that none disagreed."""
    due = {
        "episodes": len(evidence.episodes),
        "observations": sum(len(episode.calls) for episode in evidence.episodes.values()),
        "disagreements": 0,
    }
    yield from _differing(evidence.run.replay.model_dump(), due)


def tensor_faults(evidence: Evidence) -> Iterator[str]:
    """What training changed in the adapter's tensors, and which of them had a gradient."""
    claimed = evidence.run.tensors
    if claimed is None:
        return
    change = compare_tensors(evidence.initial_adapter, evidence.adapter)
    with_gradient = {name for step in evidence.steps for name, present in step.gradients.items() if present}
    due = {
        "trainable": len(change.changed) + len(change.unchanged),
        "changed": len(change.changed),
        "with_gradient": len(with_gradient),
        "unchanged": change.unchanged,
    }
    yield from _differing(claimed.model_dump(include=set(due)), due)
    if not close(claimed.elements_changed, change.elements_changed):
        yield f"elements_changed is {claimed.elements_changed}, {change.elements_changed} follows"
    for name in sorted(claimed.update_ratio.keys() | change.update_ratio.keys()):
        ratio, follows = (ratios.get(name, math.nan) for ratios in (claimed.update_ratio, change.update_ratio))
        if not close(ratio, follows):
            yield f"update ratio of {name} is {ratio}, {follows} follows"


def summary_faults(evidence: Evidence) -> Iterator[str]:
    """Steps, success, reward and varied groups, as summed up."""
    if evidence.run.steps != tuple(map(step_record, evidence.steps)):
        yield f"steps are not those of the trace ({len(evidence.run.steps)} and {len(evidence.steps)})"
    verdicts = [judged(evidence.episodes[rollout]) for rollout in evidence.rows if rollout in evidence.episodes]
    rewards = [shaped(verdict, evidence.config.shaping) for verdict in verdicts]
    due = {
        "strict_training_success": sum(verdict.strict for verdict in verdicts) / len(verdicts) if verdicts else None,
        "mean_shaped_reward": math.fsum(rewards) / len(rewards) if rewards else None,
        "varied_groups": sum(step.varied_groups for step in evidence.steps),
    }
    for name, value in due.items():
        if not close(getattr(evidence.run, name), value):
            yield f"{name} is {getattr(evidence.run, name)}, {value} follows"


def _differing(claimed: Mapping[str, object], due: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(claimed.keys() | due.keys()):
        if claimed.get(name) != due.get(name):
            yield f"{name} is {claimed.get(name)}, {due.get(name)} follows"
