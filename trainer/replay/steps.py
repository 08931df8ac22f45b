"""Steps: advantages, what each optimizer step trained on, and which weights were in use when."""

import math
from collections.abc import Iterator, Sequence

import torch

from gymqual.harness.records.trace import Pass, Row, Step
from gymqual.trainer.replay.episodes import judged, shaped
from gymqual.trainer.replay.evidence import Evidence
from gymqual.trainer.runs.tensors import tensors_digest

STD_GUARD = 1e-4
"""TRL adds it to the standard deviation that advantages are divided by."""


def close(given: float | None, due: float | None, tolerance: float = 1e-6) -> bool:
    """Whether a recorded figure is the derived one, to ``tolerance`` relative, or absolute below 1; null is null."""
    if given is None or due is None:
        return given is due
    return math.isclose(given, due, rel_tol=tolerance, abs_tol=tolerance)


def advantage_faults(evidence: Evidence) -> Iterator[str]:
    """Every advantage is its reward's within its group."""
    groups = evidence.groups()
    generations: dict[int, list[list[Row]]] = {}
    for rows in groups.values():
        generations.setdefault(rows[0].generation, []).append(rows)
    for batch in generations.values():
        everyone = _rewards(evidence, [row for rows in batch for row in rows])
        for rows in batch:
            rewards = _rewards(evidence, rows)
            if len(rows) < 2:
                yield f"rollout {rows[0].rollout}: alone in group {rows[0].group}"
                continue
            scale = evidence.config.scale_rewards
            spread = {"group": rewards.std(), "batch": everyone.std(), "none": torch.tensor(1.0 - STD_GUARD)}[scale]
            due = ((rewards - rewards.mean()) / (spread + STD_GUARD)).tolist()
            for row, value in zip(rows, due, strict=True):
                if not close(row.advantage, value):
                    yield f"rollout {row.rollout}: advantage {row.advantage:.7g}, {value:.7g} follows from its group"


def _rewards(evidence: Evidence, rows: Sequence[Row]) -> torch.Tensor:
    # In float32, as in training: the mean of equal rewards is otherwise not always the reward.
    return torch.tensor([shaped(judged(evidence.episodes[row.rollout]), evidence.config.shaping) for row in rows])


def pass_faults(evidence: Evidence) -> Iterator[str]:
    """Every row is in as many forward passes as iterations, and divided by what the loss type says."""
    objective = evidence.header.objective
    uses = dict.fromkeys(evidence.rows, 0)
    for step in evidence.steps:
        passes = evidence.passes.get(step.step, [])
        if [made.rollout for made in passes] != step.rollouts:
            yield f"step {step.step}: trained rollouts {step.rollouts}, its passes are {[m.rollout for m in passes]}"
        for made, due in zip(passes, normalisers(evidence, passes), strict=True):
            uses[made.rollout] = uses.get(made.rollout, 0) + 1
            if not close(made.normaliser, due):
                where = f"step {step.step}, rollout {made.rollout}"
                yield f"{where}: its loss is divided by {made.normaliser:g}, {objective.loss_type} divides by {due:g}"
    last = max((row.generation for row in evidence.rows.values()), default=0)
    for rollout, count in sorted(uses.items()):
        untrained = not evidence.completed and rollout in evidence.rows and evidence.rows[rollout].generation == last
        if count != objective.num_iterations and not untrained:
            yield f"rollout {rollout}: trained {count} times, {objective.num_iterations} are due"


def normalisers(evidence: Evidence, passes: Sequence[Pass]) -> list[float]:
    """Return what each row's summed token loss is divided by in its step; passes of one step, in order."""
    objective, rows = evidence.header.objective, evidence.rows
    accumulated = objective.gradient_accumulation
    # Each process has its own passes, one after another here, and all of them together make the mean.
    made_in = accumulated * objective.processes
    batch = max(1, -(-len(passes) // made_in))
    divisors = []
    for number, made in enumerate(passes):
        together = [rows[other.rollout] for other in passes[number // batch * batch :][:batch] if other.rollout in rows]
        row = rows.get(made.rollout)
        if row is None:
            divisors.append(math.nan)
            continue
        generation = [other for other in rows.values() if other.generation == row.generation]
        divisors.append(
            {
                "grpo": max(1, sum(row.mask)) * len(together) * made_in,
                "bnpo": max(1, _trained(together)) * made_in,
                "dr_grpo": len(together) * objective.max_completion_tokens * made_in,
                "dapo": max(1, _trained(generation)) * accumulated / objective.steps_per_generation,
            }[objective.loss_type]
        )
    return divisors


def _trained(rows: Sequence[Row]) -> int:
    return sum(sum(row.mask) for row in rows)


def step_faults(evidence: Evidence) -> Iterator[str]:
    """Each step's success, reward, varied groups, reason to learn nothing and learning rate follow from its rows."""
    if evidence.completed and len(evidence.steps) != evidence.config.steps:
        yield f"completed after {len(evidence.steps)} steps of {evidence.config.steps}"
    for step in evidence.steps:
        rows = evidence.rows_of(step)
        if not rows:
            yield f"step {step.step}: trained no recorded row"
            continue
        verdicts = [judged(evidence.episodes[row.rollout]) for row in rows]
        rewards = [shaped(verdict, evidence.config.shaping) for verdict in verdicts]
        groups: dict[int, set[float]] = {}
        for row, reward in zip(rows, rewards, strict=True):
            groups.setdefault(row.group, set()).add(reward)
        varied = sum(len(values) > 1 for values in groups.values())
        nothing = "" if varied else "equal rewards"
        due = {
            "strict": sum(verdict.strict for verdict in verdicts) / len(rows),
            "reward": math.fsum(rewards) / len(rows),
            "varied_groups": varied,
            "groups": len(groups),
            "learning_rate": evidence.config.learning_rate,
        }
        for name, value in due.items():
            if not close(getattr(step, name), value):
                yield f"step {step.step}: {name} is {getattr(step, name)}, {value:g} follows"
        nothing = nothing if _trained(rows) else "all truncated"
        if step.nothing_to_learn != nothing:
            yield f"step {step.step}: nothing to learn is {step.nothing_to_learn!r}, {nothing!r} follows"


def gradient_faults(evidence: Evidence) -> Iterator[str]:
    """A step has a gradient exactly if it has something to learn, and the oracle stands where it is due, in band."""
    names = evidence.initial_adapter.keys()
    bands = evidence.config.bands
    for step in evidence.steps:
        learns = any(row.advantage and any(row.mask) for row in evidence.rows_of(step))
        # A KL term alone may have a gradient or, at the reference, none.
        only_kl = evidence.config.beta > 0 and not learns
        if not math.isfinite(step.gradient_norm) or ((step.gradient_norm > 0) != learns and not only_kl):
            yield f"step {step.step}: gradient norm {step.gradient_norm:g}, its advantages say otherwise"
        if step.gradients.keys() != names:
            yield f"step {step.step}: gradients of {len(step.gradients)} tensors, the adapter has {len(names)}"
        if any(step.gradients.values()) != (step.gradient_norm > 0):
            present = sum(step.gradients.values())
            yield f"step {step.step}: gradient norm {step.gradient_norm:g}, yet {present} tensors have a gradient"
        oracle = step.oracle
        if oracle is None:
            if evidence.config.oracle_at(step.step):
                yield f"step {step.step}: its gradient was not computed a second time"
            continue
        ratio = oracle.trainer_norm / oracle.oracle_norm if oracle.trainer_norm and oracle.oracle_norm else None
        if not close(oracle.trainer_norm, step.gradient_norm) or not close(oracle.norm_ratio, ratio):
            yield f"step {step.step}: the oracle's norms are not those of the step"
        elif only_kl:
            # Of the size of its rounding; how large that is, only the weights can tell.
            continue
        elif ratio is None:
            if oracle.trainer_norm != oracle.oracle_norm:
                yield f"step {step.step}: gradient norm {oracle.trainer_norm:g}, the oracle's {oracle.oracle_norm:g}"
        elif oracle.cosine is None or abs(1 - oracle.cosine) > bands.cosine or abs(1 - ratio) > bands.norm_ratio:
            yield f"step {step.step}: oracle cosine {oracle.cosine}, norm ratio {ratio}"


def gap_faults(evidence: Evidence) -> Iterator[str]:
    """At equal weights, the log-probabilities of sampler and loss agree, to the band or to rounding, as is recorded."""
    bands = evidence.config.bands
    for step in evidence.steps:
        gaps: list[float] = []
        for made in evidence.passes.get(step.step, []):
            drawn = [own - sampled for own, sampled in _at_equal_weights(evidence, made)]
            gaps += drawn
            gap, excused = max(map(abs, drawn), default=0.0), min(made.magnified or 0.0, bands.logprob_gap_magnified)
            band = max(bands.logprob_gap, excused)
            if gap > band:
                yield f"step {step.step}: sampler and loss differ by {gap:.3g} nats at equal weights, over {band:g}"
            if made.magnified is not None and gap <= bands.logprob_gap:
                yield f"step {step.step}, rollout {made.rollout}: rounding is said to explain what is within the band"
        largest = max(map(abs, gaps), default=None)
        kl = sum(math.expm1(-gap) + gap for gap in gaps) / len(gaps) if gaps else None
        # A KL computed in float32 shows little but its own rounding here.
        if not close(step.logprob_gap_max, largest, 1e-9) or not close(step.logprob_gap_kl, kl):
            stated = f"{step.logprob_gap_max}, KL {step.logprob_gap_kl}"
            yield f"step {step.step}: the gap is said to be {stated}, it is {largest}, KL {kl}"


def _at_equal_weights(evidence: Evidence, made: Pass) -> Iterator[tuple[float, float]]:
    """Yield (loss's, sampler's) log-probability of every trained id that both computed with the same weights."""
    row, calls = evidence.rows.get(made.rollout), evidence.calls.get(made.rollout, [])
    if row is None:
        return
    for call in calls:
        start = len(call.context) - len(row.prompt)
        for offset, sampled in enumerate(call.logprobs, start=start):
            if call.policy == made.policy and offset < len(row.mask) and row.mask[offset]:
                yield made.logprobs[offset], sampled


def reference_faults(evidence: Evidence) -> Iterator[str]:
    """With a KL term the reference's KL is as recorded, and exactly 0 at the first step; without, there is none."""
    for step in evidence.steps:
        terms: list[float] = []
        for made in evidence.passes.get(step.step, []):
            row = evidence.rows.get(made.rollout)
            if row is None or (row.reference_logprobs is None) != (evidence.config.beta == 0):
                yield f"step {step.step}, rollout {made.rollout}: reference log-probabilities do not fit beta"
            elif row.reference_logprobs is not None:
                pairs = zip(made.logprobs, row.reference_logprobs, row.mask, strict=True)
                terms += [math.expm1(behind - own) - (behind - own) for own, behind, trained in pairs if trained]
        kl = math.fsum(terms) / len(terms) if terms else None
        if not close(step.reference_kl, kl) or (step.step == 1 and kl):
            yield f"step {step.step}: KL of the reference is {kl}, recorded {step.reference_kl}"


def policy_faults(evidence: Evidence) -> Iterator[str]:
    """Weights go from the initial adapter, step by step, to the saved one; each rollout was sampled by the present."""
    present = tensors_digest(evidence.initial_adapter)
    moved = False
    for step in evidence.steps:
        if step.policy_before != present:
            yield f"step {step.step}: begins with weights {step.policy_before[:16]}, {present[:16]} were left"
        if (step.gradient_norm > 0) and step.policy_after == step.policy_before:
            yield f"step {step.step}: has a gradient, but its weights are those before"
        moved = moved or step.gradient_norm > 0
        # Momentum moves weights after a first gradient, but nothing does before.
        if not moved and step.policy_after != step.policy_before:
            yield f"step {step.step}: weights changed without a gradient"
        yield from _use_faults(evidence, step)
        present = step.policy_after
    if evidence.run.tensors is None and evidence.completed:
        yield "completed, but the manifest claims no adapter"
    if evidence.run.tensors is not None and (saved := tensors_digest(evidence.adapter)) != present:
        yield f"adapter: has weights {saved[:16]}, training left {present[:16]}"


def _use_faults(evidence: Evidence, step: Step) -> Iterator[str]:
    for made in evidence.passes.get(step.step, []):
        if made.policy != step.policy_before:
            yield f"step {step.step}, rollout {made.rollout}: its pass used other weights than the step began with"
    if evidence.header.objective.num_iterations > 1:
        return
    if evidence.header.objective.steps_per_generation > evidence.header.objective.gradient_accumulation:
        return
    for rollout in step.rollouts:
        for call in evidence.calls.get(rollout, []):
            if call.policy != step.policy_before:
                where = f"step {step.step}, rollout {rollout}, turn {call.turn}"
                yield f"{where}: sampled by other weights than are trained"
