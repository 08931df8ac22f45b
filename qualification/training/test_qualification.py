"""Online GRPO through a gym: eight steps, thirty-two on-policy rollouts, qualified by evidence and not by an exit.

The same checks on the CPU and on one BF16 CUDA GPU. Scores of training rollouts are no measure of a model.
"""

import subprocess
import sys
from collections import Counter

import pytest

from gymqual.gyms.base import ToolCall
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import Planted, check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.training.qualified import GROUP, STEPS, Trained, trained_through
from gymqual.trainer.runs.config import Bands
from gymqual.trainer.runs.manifest import COMPLETED
from gymqual.trainer.runs.tensors import compare_tensors, load_adapter

_RUNS: dict[tuple[str, str, str], Trained] = {}


@pytest.fixture
def trained(
    request: pytest.FixtureRequest,
    run: Run,
    policy_name: str,
    defect: Planted | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Trained:
    """A qualification run of this gym and device; made once, and once more for every defect."""
    gym, device = request.param
    key = (gym, device, defect.defect if defect else "healthy")
    if key not in _RUNS:
        _RUNS[key] = trained_through(gym, device, policy_name, run, "-".join(key), monkeypatch)
    return _RUNS[key]


EVERYWHERE = pytest.mark.parametrize(
    "trained",
    [
        pytest.param((gym, device), marks=[pytest.mark.gym(gym), mark], id=f"{gym}-{device}")
        for gym in ("nemo", "openenv")
        for device, mark in (("cpu", pytest.mark.cpu_qualification), ("cuda", pytest.mark.gpu_qualification))
    ],
    indirect=True,
)
pytestmark = pytest.mark.timeout(600)


@EVERYWHERE
@check("TRAIN-01", broken="one_task_over_and_over")
def test_every_rollout_was_made_and_every_task_consumed(trained: Trained, evidence: Evidence) -> None:
    """Training MUST complete eight steps of four on-policy rollouts, each of eight fresh tasks consumed four times."""
    manifest = trained.manifest
    pool = manifest.config.tasks
    seen = {
        "outcome": manifest.outcome,
        "steps": [step.step for step in trained.of("step")],
        "rollouts": len(trained.of("row")),
        "consumed": manifest.consumed_tasks,
        "splits": {task.split("/")[1] for task in pool},
        "policies that sampled": len({call.policy for call in trained.of("call")}),
    }
    # Only a step whose group varied changes the policy that samples next.
    moved = sum(step.gradient_norm > 0 for step in manifest.steps[:-1])
    evidence.measure(strict_training_success=manifest.strict_training_success, seconds=manifest.seconds)
    evidence.attach("manifest.json", manifest.model_dump(mode="json"))
    expected = {
        "outcome": COMPLETED,
        "steps": list(range(1, STEPS + 1)),
        "rollouts": STEPS * GROUP,
        "consumed": dict.fromkeys(pool[:STEPS], GROUP),
        "splits": {"train"},
        "policies that sampled": 1 + moved,
    }
    assert seen == expected, explain(
        subject=f"training through {trained.gym}",
        expected=expected,
        got=seen,
        cause="the run was stopped (see its outcome), or the dataset was not trained in its frozen order",
    )


@EVERYWHERE
@check("TRAIN-02", broken="a_hidden_kl_term")
def test_there_is_a_gradient_exactly_where_rewards_differ(trained: Trained, evidence: Evidence) -> None:
    """The gradient MUST be nonzero at every step whose group varied and exactly zero elsewhere; at least 5 vary."""
    steps = trained.of("step")
    wrong = [
        (s.step, s.gradient_norm, s.varied_groups) for s in steps if (s.gradient_norm > 0) != bool(s.varied_groups)
    ]
    varied = sum(step.varied_groups for step in steps)
    nonzero = sum(step.gradient_norm > 0 for step in steps)
    norms = [step.gradient_norm for step in steps]
    evidence.measure(varied=varied, nonzero=nonzero, norms=norms, reference={"varied": 7, "nonzero": 8})
    assert (wrong, varied >= 5, len(steps)) == ([], True, STEPS), explain(
        subject="steps whose gradient does not follow from their rewards (step, norm, varied groups); 5 varied; steps",
        expected=([], True, STEPS),
        got=(wrong, varied, len(steps)),
        cause="something else than the advantage is in the loss, or the run was stopped",
    )


@EVERYWHERE
@check("TRAIN-03", broken="one_tensor_is_never_updated")
def test_all_trainable_tensors_change_and_no_other(trained: Trained, evidence: Evidence) -> None:
    """Every trainable tensor MUST change and have a gradient in some step, and every frozen one stay as it is."""
    before, after = (load_adapter(trained.folder / name) for name in ("initial_adapter", "adapter"))
    change = compare_tensors(before, after)
    with_gradient = {name for step in trained.of("step") for name, present in step.gradients.items() if present}
    layers = {name.split(".layers.")[1].split(".")[0] for name in before}
    ratios = sorted(ratio for ratio in change.update_ratio.values() if ratio is not None)
    evidence.measure(
        trainable=len(before),
        layers=len(layers),
        elements_changed=change.elements_changed,
        update_ratio={"smallest": ratios[0], "median": ratios[len(ratios) // 2], "largest": ratios[-1]},
    )
    # LoRA has an A and a B for each of the seven projections of a layer.
    seen = (len(before), len(change.changed), len(with_gradient), trained.manifest.outcome)
    assert seen == (14 * len(layers), len(before), len(before), COMPLETED), explain(
        subject="trainable tensors, those changed, those with a gradient; outcome, which includes the frozen ones",
        expected=(14 * len(layers), len(before), len(before), COMPLETED),
        got=(*seen, change.unchanged[:3]),
        cause="a tensor is left out of the optimizer, or the base model is trained too",
    )


@EVERYWHERE
@check("TRAIN-04", broken="the_oracle_is_skipped")
def test_gradient_and_log_probabilities_are_those_of_the_record(trained: Trained, evidence: Evidence) -> None:
    """Gradients MUST equal the oracle's at steps 1, 2 and last, the sampler's log-probabilities the loss's at each."""
    bands = Bands()
    steps = {step.step: step for step in trained.of("step")}
    due = [number for number in (1, 2, STEPS) if number in steps]
    oracles = {number: steps[number].oracle for number in due}
    missing = [number for number, oracle in oracles.items() if oracle is None]
    far = [
        number
        for number, oracle in oracles.items()
        if oracle and oracle.cosine is not None and oracle.norm_ratio is not None
        if abs(1 - oracle.cosine) > bands.cosine or abs(1 - oracle.norm_ratio) > bands.norm_ratio
    ]
    gaps = [step.logprob_gap_max for step in steps.values()]
    wide = [gap for gap in gaps if gap is None or gap > bands.logprob_gap]
    evidence.measure(gaps=gaps, oracles={n: o.model_dump() if o else None for n, o in oracles.items()})
    assert (len(steps), missing, far, wide) == (STEPS, [], [], []), explain(
        subject="steps; due oracles that are missing, or out of band; gaps of sampler and loss out of band",
        expected=(STEPS, [], [], []),
        got=(len(steps), missing, far, wide),
        cause="an audit was not made, or sampler and trainer disagree",
    )


@EVERYWHERE
@check("TRAIN-05", broken="external_tokens_are_not_counted")
def test_sampled_tokens_are_trained_and_no_others(trained: Trained, evidence: Evidence) -> None:
    """Every sampled token MUST be trained once and no observation or framing; calls that no row holds MUST be none."""
    rows, calls = trained.of("row"), trained.of("call")
    sampled = sum(len(call.sampled) for call in calls)
    trained_ids = sum(sum(row.mask) for row in rows)
    cut = sum(row.cut for row in rows)
    external = sum(len(row.mask) - sum(row.mask) for row in rows)
    unmatched = {(call.rollout, call.turn) for call in calls} - {
        (row.rollout, turn) for row in rows for turn in range(sum(span.source == "sampled" for span in row.spans))
    }
    told = trained.manifest.tokens.model_dump()
    evidence.measure(sampled=sampled, trained=trained_ids, external=external, cut=cut)
    seen = (sampled == trained_ids + cut, external > 0, len(unmatched), told)
    expected = (True, True, 0, {"sampled": trained_ids, "external": external, "cut": cut})
    assert seen == expected, explain(
        subject="sampled == trained + cut; tokens excluded; calls without a row; totals that the manifest tells",
        expected=expected,
        got=seen,
        cause="a mask is not the sampled ids, or the totals were not taken from the rows",
    )


@EVERYWHERE
@check("TRAIN-06", broken="observations_are_rewritten")
def test_every_observation_and_verdict_replays(trained: Trained, orders: GermanOrders, evidence: Evidence) -> None:
    """Every observation that was trained on and every verdict MUST equal the replay of the observed calls."""
    disagreeing = []
    episodes = trained.of("episode")
    for episode in episodes:
        calls = [ToolCall(use.tool, use.arguments) for use in episode.calls]
        replay = orders.replay(episode.task_id, calls, episode.answer, episode.truncated)
        shown = [(use.text, use.is_error) for use in episode.calls]
        told = (episode.reward, episode.strict, episode.outcome, episode.parts)
        verdict = replay.verdict
        due = (verdict.reward, verdict.strict, verdict.outcome, dict(verdict.parts))
        if shown != [(seen.text, seen.is_error) for seen in replay.observations] or told != due:
            disagreeing.append(episode.rollout)
    observations = sum(len(episode.calls) for episode in episodes)
    outcomes = Counter(episode.outcome for episode in episodes)
    evidence.measure(episodes=len(episodes), observations=observations, outcomes=dict(outcomes))
    assert (disagreeing, len(episodes), observations > 0) == ([], STEPS * GROUP, True), explain(
        subject="rollouts that replay otherwise; episodes; whether there were observations",
        expected=([], STEPS * GROUP, True),
        got=(disagreeing, len(episodes), observations),
        cause="somebody between gym and tokens changes what the gym showed",
    )


@EVERYWHERE
@check("TRAIN-07", broken="the_initial_adapter_is_saved")
def test_the_saved_adapter_is_the_trained_policy(trained: Trained, evidence: Evidence) -> None:
    """The adapter MUST load in a fresh process and give the log-probabilities of the policy as it was trained."""
    policy = trained.manifest.config.policy
    loaded = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, policy, trained.folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    largest = float(loaded.stdout.split()[-1]) if loaded.returncode == 0 else None
    evidence.measure(largest_difference=largest)
    assert largest is not None, explain(
        subject="log-probabilities of a rollout by the reloaded adapter, against the live policy's",
        expected="a difference of at most 1e-4",
        got=loaded.stderr[-600:],
        cause="the adapter was not saved, or not the one that was trained",
    )


FRESH_PROCESS = """
import json, sys, torch
from pathlib import Path
from gymqual.trainer.policy.loading import load_policy
folder = Path(sys.argv[2])
probe = json.loads((folder / "probe.json").read_text())
ids = torch.tensor([probe["ids"]])
model = load_policy(sys.argv[1], folder / "adapter").model
logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None]).squeeze(1)
largest = (logprobs - torch.tensor(probe["logprobs"])).abs().max().item()
assert largest <= float(sys.argv[3] if len(sys.argv) > 3 else 1e-4), f"differs by {largest}"
print(largest)
"""


@EVERYWHERE
@check("TRAIN-08", broken="the_manifest_claims_more")
def test_the_replay_audit_holds(trained: Trained, evidence: Evidence) -> None:
    """An independent replay of the raw evidence MUST hold every claim of the run's manifest."""
    audited = subprocess.run(
        [sys.executable, "-m", "gymqual", "replay", trained.folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    evidence.attach("replay_audit.txt", audited.stdout + audited.stderr)
    broken = [line for line in audited.stdout.splitlines() if line.startswith("BROKEN")]
    assert (audited.returncode, broken) == (0, []), explain(
        subject="exit code and broken claims of gymqual.trainer.replay.audit",
        expected=(0, []),
        got=(audited.returncode, broken or audited.stderr[-600:]),
        cause="the manifest claims what its evidence does not show",
    )


@EVERYWHERE
@check("TRAIN-09", broken="sessions_are_left_open")
def test_the_service_and_its_processes_are_released(trained: Trained, evidence: Evidence) -> None:
    """After training no session MUST be open, no process of the run alive, and no GPU memory held by it."""
    import torch

    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    evidence.measure(open_sessions=trained.open_sessions, processes=trained.processes, gpu_bytes=held)
    seen = (trained.open_sessions, trained.processes, held < 2**20)
    assert seen == (0, (), True), explain(
        subject="sessions still open at the service, processes left, and GPU memory released",
        expected=(0, (), True),
        got=(trained.open_sessions, trained.processes, held),
        cause="the trainer ends without closing what it has opened",
    )
