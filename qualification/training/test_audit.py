"""The audit: every planted trainer bug is stopped by the rule that owns it, and a clean trainer by none.

Nearly all of the bugs change every trainable tensor, which is what is usually looked at.
"""

from pathlib import Path

import pytest

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.broken.planted import due_of, sampled_ids, stops_of
from gymqual.qualification.broken.trainers import of_check

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.filterwarnings("ignore")]


SUBJECT = "(rule that stopped it, nothing trained beyond) by planted bug"


def _studied(check_id: str, folder: Path, evidence: Evidence) -> tuple[dict[str, object], dict[str, object]]:
    """Return what became of every bug that a check has to stop, and of the healthy trainer, and what is due."""
    faults = of_check(check_id)
    seen = stops_of(faults, folder)
    evidence.measure(seen=seen)
    return seen, due_of(faults)


@check("AUDIT-01", broken="masks_are_not_compared")
def test_a_mask_that_is_not_the_sampled_ids_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A mask that is shifted, empty, trains an observation, or leaves out a later turn or its end MUST stop the run."""
    seen, expected = _studied("AUDIT-01", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="the mask is compared with something else than what was sampled",
    )


@check("AUDIT-02", broken="rows_are_matched_by_length")
def test_a_row_that_was_not_sampled_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Ids that were encoded again or cut, and a rollout trained in another's place, MUST stop the run."""
    seen, expected = _studied("AUDIT-02", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="trained ids are not held to the ids that were drawn",
    )


@check("AUDIT-03", broken="episodes_are_not_compared")
def test_a_rollout_that_is_not_its_episode_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Swapped rollouts, changed observations, an infrastructure failure paid 0, a mixed group MUST stop the run."""
    seen, expected = _studied("AUDIT-03", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="ids, messages, environments and groups are not held together",
    )


@check("AUDIT-04", broken="advantages_are_believed")
def test_a_reward_or_advantage_of_another_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A reward that is not its episode's, missing or not finite, or an advantage not its group's, MUST stop the run."""
    seen, expected = _studied("AUDIT-04", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="rewards and advantages are taken as the trainer has them",
    )


@check("AUDIT-05", broken="the_oracle_agrees_with_all")
def test_a_gradient_that_is_not_the_oracles_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A loss of another scale, sign, type or normaliser, or that leaves rows out, MUST stop the run before its step."""
    seen, expected = _studied("AUDIT-05", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="the gradient is only asked to be nonzero",
    )


@check("AUDIT-06", broken="the_mean_is_compared")
def test_a_sampler_that_is_not_the_policy_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A stale policy, other temperature, sampling or precision, another reference or old policy MUST stop the run."""
    seen, expected = _studied("AUDIT-06", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="sampler and trainer are compared in the mean, or by what they say of themselves",
    )


@check("AUDIT-08", broken="draws_are_believed")
def test_rollouts_that_are_not_drawn_independently_are_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Siblings that draw alike, and random numbers that are used again, MUST stop the run within four steps."""
    seen, expected = _studied("AUDIT-08", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="rollouts are only asked to be there",
    )


@check("AUDIT-09", broken="updates_are_believed")
def test_a_step_that_is_not_the_optimizers_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Other clipping or learning rate, an update lost or added, and a trained base MUST stop the run."""
    seen, expected = _studied("AUDIT-09", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="tensors are only asked to have changed",
    )


@check("AUDIT-10", broken="the_pool_is_not_compared")
def test_a_row_or_task_out_of_order_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """A row of the dataset skipped or repeated, and a task that is not the pool's next, MUST stop the run."""
    seen, expected = _studied("AUDIT-10", tmp_path, evidence)
    assert seen == expected, explain(
        subject=SUBJECT,
        expected=expected,
        got=seen,
        cause="it is only counted how many tasks were trained",
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
