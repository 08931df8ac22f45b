"""What is recorded of an optimizer step, from its rows and what was measured while it was taken."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymqual.harness.records.trace import Objective, Row, Step
from gymqual.trainer.audit import grpo_oracle


def summed_up(
    step: int, trained: Sequence[Row], measured: Mapping[str, Any], made_of: Objective, policies: tuple[str, str]
) -> Step:
    """Return the record of a step that trained these rows, one a forward pass; ``policies`` before and after it.

    ``measured`` holds norm and presence of gradients, the learning rate, the oracle, and gap, KL and reference KL of
    the trained ids; what could not be measured is absent.
    """
    kl, reference = measured.get("kl"), measured.get("reference_kl")
    weighted = grpo_oracle.weighted([row.rewards for row in trained], made_of.reward_weights)
    given = [value for value in weighted if value is not None]
    groups: dict[int, set[float | None]] = {}
    for row, value in zip(trained, weighted, strict=True):
        groups.setdefault(row.group, set()).add(value)
    varied = sum(len(values) > 1 for values in groups.values())
    all_cut = all(not any(row.mask) for row in trained)
    return Step(
        step=step,
        rollouts=[row.rollout for row in trained],
        strict=sum((row.rewards.get("strict") or 0.0) > 0 for row in trained) / len(trained),
        reward=sum(given) / len(given) if given else None,
        varied_groups=varied,
        groups=len(groups),
        nothing_to_learn="all truncated" if all_cut else "" if varied else "equal rewards",
        gradient_norm=measured["norm"],
        gradients=measured["gradients"],
        learning_rate=measured.get("learning_rate", 0.0),
        policy_before=policies[0],
        policy_after=policies[1],
        logprob_gap_max=measured.get("gap"),
        logprob_gap_kl=sum(kl) / len(kl) if kl else None,
        reference_kl=sum(reference) / len(reference) if reference else None,
        oracle=measured.get("oracle"),
    )
