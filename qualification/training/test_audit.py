"""The audit: every planted trainer bug is stopped by the rule that owns it, and a clean trainer by none.

Nearly all of the bugs change every trainable tensor, which is what is usually looked at.
"""

from pathlib import Path

import pytest

from harness.checks import check, explain
from harness.evidence import Evidence
from qualification.training.planted import PLANTED, Untouched, sampled_ids, stopped_by

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.filterwarnings("ignore")]


def _stopped(
    group: str, folder: Path, evidence: Evidence, **settings: object
) -> tuple[dict[str, object], dict[str, object]]:
    """Return for every bug of a group (rule that stopped it, weights spared), and what is due."""
    bugs = PLANTED[group]
    seen: dict[str, object] = {bug.__name__: stopped_by(bug, folder, **settings) for bug in bugs}
    seen["control"] = stopped_by(Untouched, folder, **settings)
    evidence.measure(seen=seen)
    return seen, {**{bug.__name__: (rule, True) for bug, rule in bugs.items()}, "control": (None, False)}


@check("AUDIT-01", broken="masks_are_not_compared")
def test_a_mask_that_is_not_the_sampled_ids_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A mask that is shifted, trains an observation, or leaves out a later turn or its end MUST stop the run."""
    seen, expected = _stopped("mask", tmp_path, evidence)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="the mask is compared with something else than what was sampled",
    )


@check("AUDIT-02", broken="rows_are_matched_by_length")
def test_a_row_that_was_not_sampled_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Ids that were encoded again, and a rollout trained in another's place, MUST stop the run."""
    seen, expected = _stopped("rows", tmp_path, evidence)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="trained ids are not held to the ids that were drawn",
    )


@check("AUDIT-03", broken="episodes_are_not_compared")
def test_a_rollout_that_is_not_its_episode_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Swapped rollouts, an infrastructure failure scored 0, and a group over two prompts MUST stop the run."""
    seen, expected = _stopped("rollouts", tmp_path, evidence)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="ids, messages, environments and groups are not held together",
    )


@check("AUDIT-04", broken="advantages_are_believed")
def test_a_reward_or_advantage_of_another_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A reward that is not its episode's, or not finite, or an advantage not its group's, MUST stop the run."""
    seen, expected = _stopped("rewards", tmp_path, evidence)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="rewards and advantages are taken as the trainer has them",
    )


@check("AUDIT-05", broken="the_oracle_agrees_with_all")
def test_a_gradient_that_is_not_the_oracles_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A loss that is scaled, has the wrong sign, or leaves rows out MUST stop the run at its first gradient."""
    seen, expected = _stopped("gradient", tmp_path, evidence)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="the gradient is only asked to be nonzero",
    )


@check("AUDIT-06", broken="the_mean_is_compared")
def test_a_sampler_that_is_not_the_policy_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A stale policy, another temperature or sampling, and another reference model MUST stop the run."""
    seen, expected = _stopped("policy", tmp_path, evidence, beta=0.04)
    assert seen == expected, explain(
        subject="(rule that stopped it, weights spared) by planted bug",
        expected=expected,
        got=seen,
        cause="sampler and trainer are compared in the mean, or by what they say of themselves",
    )


@check("AUDIT-07", broken="the_recorder_draws_too")
def test_an_audit_changes_no_sampled_id(tmp_path: Path, evidence: Evidence) -> None:
    """With and without audit the same ids MUST be sampled, over loss types, and a clean run MUST be let through."""
    settings = [
        {"loss_type": "dapo", "groups_per_step": 2},
        {"loss_type": "grpo", "beta": 0.04},
        {"loss_type": "bnpo", "scale_rewards": "batch"},
        {"loss_type": "dr_grpo", "scale_rewards": "none", "temperature": 0.9},
        # A budget that cuts the last turn.
        {"max_completion_tokens": 66},
    ]
    seen, due = [], []
    for number, each in enumerate(settings):
        without = sampled_ids(tmp_path / f"{number}-without", with_audit=False, **each)
        seen.append(sampled_ids(tmp_path / f"{number}-with", with_audit=True, **each) == without)
        due.append(True)
    evidence.measure(configurations=len(settings))
    assert seen == due, explain(
        subject="equal ids with and without audit, by configuration",
        expected=due,
        got=seen,
        cause="the audit draws random numbers, changes a distribution, or gives a false alarm",
    )
