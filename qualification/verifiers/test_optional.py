"""Verifiers, five optional checks: tokens, renderers, replay and resume, the environment server, a real model.

A trainer of Prime's stack reads token ids, masks and log-probabilities off these very traces. The models are the
embedded policy, sampled for real behind ``gymqual serve-policy``, or the server that ``--inference-url`` names.
"""

import json

import pytest

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.support.verifiers.expected import Seen, account, of_trace
from gymqual.qualification.support.verifiers.lab import Lab
from gymqual.qualification.support.verifiers.token_tap import SPOILS

pytestmark = [pytest.mark.gym("verifiers"), pytest.mark.optional]


@check("VF-O-01", broken="mask_covers_the_observations")
def test_the_ids_trained_are_the_ids_sampled(lab: Lab, evidence: Evidence) -> None:
    """Branch ids, mask and log-probabilities MUST be exactly what was asked of and sampled by the token server."""
    played, exchanges = lab.tokens()
    branches = lab.branches(played)
    traces = list(played.traces.values())
    accounts = {trace["task"]["key"]: account(branches[trace["id"]], trace["id"], exchanges) for trace in traces}
    seen = {
        "sources": {of_trace(trace)[2] for trace in traces} - {"model", "budget"},
        "turns of all": sum(map(Seen.turns, traces)),
        "differing": {key: each for key, each in accounts.items() if any(each.values())},
        "branches": {len(each) for each in branches.values()},
    }
    evidence.attach("exchanges.json", [vars(exchange) for exchange in exchanges])
    evidence.measure(solved=sum(of_trace(trace)[1] == 1.0 for trace in traces), turns=len(exchanges))
    expected = {"sources": set(), "turns of all": len(exchanges), "differing": {}, "branches": {1}}
    assert seen == expected, explain(
        subject="eight sampled rollouts, as upstream's branches give them and as they crossed the wire",
        expected=expected,
        got=seen,
        cause="ids are rendered or tokenised again, or the mask covers what was not sampled",
    )


@check("VF-O-02", broken="positive_logprobs_pass")
def test_tokens_that_cannot_be_trained_are_infrastructure(lab: Lab, evidence: Evidence) -> None:
    """A renderer that does not fit, and log-probabilities missing, short, NaN or positive, MUST be infrastructure."""
    traces = lab.spoilt()
    seen = {name: of_trace(trace)[1:3] for name, trace in traces.items()}
    evidence.measure(errors={name: (trace.get("errors") or [{}])[-1].get("type") for name, trace in traces.items()})
    spoilt = [name for name, spoil in SPOILS.items() if spoil]
    expected = dict.fromkeys([*spoilt, "no renderer", "a model's own"], (None, "infrastructure"))
    healthy = seen.pop("healthy", None)
    assert (seen, healthy is not None and healthy[1] != "infrastructure") == (expected, True), explain(
        subject="(reward, source) of one rollout each, and whether the one that was left alone has a reward",
        expected=(expected, True),
        got=(seen, healthy),
        cause="a trace that lacks what a loss needs is scored, and enters training as an empty mask or a wrong ratio",
    )


@check("VF-O-03", broken="evidence_stays_in_the_state")
def test_saved_rollouts_score_again_and_resume(lab: Lab, evidence: Evidence) -> None:
    """Replay MUST give every saved rollout its reward again; resume MUST keep what is scored and redo what is not."""
    played, episodes = lab.near_misses()
    first, second = lab.resumed()
    replayed = lab.replayed(played).traces
    kept = [line for line in first if line in second]
    seen = {
        "replayed": {key: trace["rewards"] for key, trace in replayed.items()},
        "kept": sorted(json.loads(line)["task"]["key"] for line in kept),
        "redone": [json.loads(line)["task"]["key"] for line in second if line not in first],
        "after": len(second),
    }
    evidence.measure(scores={episodes[key].script.name: of_trace(trace)[1] for key, trace in replayed.items()})
    expected = {
        "replayed": {key: trace["rewards"] for key, trace in played.traces.items()},
        "kept": ["v1/dev/3/0", "v1/dev/3/1"],
        "redone": ["v1/dev/3/2"],
        "after": 3,
    }
    assert seen == expected, explain(
        subject="twelve saved rollouts through vf-replay; a run of three, one never scored, through vf-eval --resume",
        expected=expected,
        got=seen,
        cause="the verdict needs what a trace does not keep, or a rollout without a reward counts as done",
    )


@check("VF-O-04", broken="the_server_picks_the_task")
def test_the_environment_server_plays_the_same_rollouts(lab: Lab, evidence: Evidence) -> None:
    """Through upstream's environment server the same tasks MUST give the same conversations, rewards and identity."""
    alone, served = lab.served()
    read = {
        name: {
            key: (trace["task"]["hash"], Seen.messages(trace), of_trace(trace), Seen.identity(trace).digest)
            for key, trace in run.traces.items()
        }
        for name, run in (("alone", alone), ("served", served))
    }
    evidence.measure(outcomes={key: list(each[2]) for key, each in read["served"].items()})
    outcomes = [each[2][3] for _, each in sorted(read["served"].items())]
    expected = (read["alone"], ["solved", "wrong_answer", "no_lookup", "malformed_answer"])
    assert (read["served"], outcomes) == expected, explain(
        subject="four scripted rollouts over ZMQ, and the same in one process",
        expected=expected,
        got=(read["served"], outcomes),
        cause="a field of the task or of the trace is lost on the wire",
    )


@pytest.mark.timeout(900)
@check("VF-O-05", broken="answers_are_cut")
def test_a_real_model_plays_by_the_documented_command(lab: Lab, evidence: Evidence) -> None:
    """The documented command MUST play a real model's rollouts to a reward each, its calls answered by the tools."""
    played = lab.real()
    traces = list(played.traces.values())
    outcomes = {trace["task"]["key"]: of_trace(trace) for trace in traces}
    seen = {
        "exit code": played.ended.exit_code,
        "rollouts": len(traces),
        "without a reward": [key for key, outcome in outcomes.items() if outcome[1] is None],
        "calls answered": any(trace["info"].get("tools", {}).get("served") for trace in traces),
        "tokens reported": all(trace["num_output_tokens"] > 0 for trace in traces),
    }
    evidence.measure(outcomes={key: list(outcome) for key, outcome in outcomes.items()}, model=played.resolved["model"])
    expected = {"exit code": 0, "rollouts": 4, "without a reward": [], "calls answered": True, "tokens reported": True}
    assert seen == expected, explain(
        subject="four rollouts of a model behind a real server",
        expected=expected,
        got=seen,
        cause="server, client and harness do not agree, answers are cut, or the model cannot call a tool at all",
    )
