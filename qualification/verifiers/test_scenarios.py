"""Verifiers, seven scenarios on CPU: what any user of the environment's commands may rely on.

Every check starts upstream's own commands in their locked environment; models are scripted servers on loopback.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gymqual.gyms import loaded
from gymqual.gyms.verifiers.launch import ENVIRONMENT, FIXTURE
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.files import sha256_file
from gymqual.qualification.support.subjects import installed_digest
from gymqual.qualification.support.verifiers.expected import (
    DOCUMENTED_ROLLOUTS,
    FAULTS,
    PAID,
    READ_S,
    REQUEST_FIELDS,
    SCRIPTED_TURNS,
    SHORT_ROLLOUTS,
    Seen,
    of_trace,
    tampered,
)
from gymqual.qualification.support.verifiers.lab import MANY, ONE, Lab, classified

pytestmark = [pytest.mark.gym("verifiers"), pytest.mark.cpu_smoke]


@check("VF-S-01", broken="fixture_makes_up_logprobs")
def test_the_fixture_plays_upstreams_whole_lifecycle(lab: Lab, run: Run, evidence: Evidence) -> None:
    """A scripted rollout MUST pass upstream's whole lifecycle, stamped scripted, with nothing of a model made up."""
    played = lab.fixture()
    traces = [trace for episode in played.episodes for trace in episode["traces"]]
    run.note_gym(Seen.identity(traces[0]))
    evidence.attach("trace.json", traces[0])
    seen = {
        "exit code": played.ended.exit_code,
        "rollouts": len(traces),
        "upstream's schema": lab.reread(played).output.strip(),
        "distinct": sorted({json.dumps(Seen.scripted(trace), sort_keys=True) for trace in traces}),
    }
    expected = {"exit code": 0, "rollouts": 8, "upstream's schema": "", "distinct": [json.dumps(SCRIPTED_TURNS)]}
    assert seen == expected, explain(
        subject="eight rollouts of the fixture harness, by vf-eval",
        expected=expected,
        got=seen,
        cause="a stage of the lifecycle is passed over, or the trace pretends to be a model's",
    )


@check("VF-S-02", broken="the_number_alone_pays")
def test_only_the_whole_right_path_is_paid(lab: Lab, evidence: Evidence) -> None:
    """A right number without the tools, with more text, or after a foreign record MUST be 0.0, and the rollout ok."""
    played, episodes = lab.near_misses()
    seen = {each.script.name: of_trace(played.traces[key]) for key, each in episodes.items()}
    expected = {}
    for script, truncated, _ in episodes.values():
        verdict = lab.orders.replay(ONE, script.calls, script.answer, truncated).verdict
        cut = ("budget", "max_output_tokens") if truncated else ("model", verdict.outcome)
        expected[script.name] = (True, verdict.reward, *cut)
    evidence.measure(outcomes={name: list(each) for name, each in seen.items()})
    paid = [name for name, each in seen.items() if each[1] != 0.0]
    assert (seen, paid) == (expected, PAID), explain(
        subject="(ok, reward, source, outcome) of every scripted near miss, and which are paid",
        expected=(expected, PAID),
        got=(seen, paid),
        cause="the reward is not the core's strict verdict of the calls as they were written",
    )


@check("VF-S-03", broken="state_of_the_process")
def test_sixteen_rollouts_on_one_tool_server_are_isolated(lab: Lab, evidence: Evidence) -> None:
    """Sixteen concurrent rollouts on the shared tool server MUST each see their own record and get their own reward."""
    played, episodes = lab.interleaved()
    traces = {task: played.traces[task] for task in MANY}
    seen: dict[str, object] = {task: (*Seen.observations(trace), of_trace(trace)[1]) for task, trace in traces.items()}
    expected: dict[str, object] = {}
    for task in MANY:
        script = episodes[task].script
        replay = lab.orders.replay(task, script.calls, script.answer)
        expected[task] = (*(each.text for each in replay.observations), replay.verdict.reward)
    seen["at once"] = Seen.most_at_once(traces.values()) >= 8
    seen["tool servers"] = played.ended.output.count("shared tool server '")
    expected |= {"at once": True, "tool servers": 1}
    evidence.attach("rollouts.json", seen)
    assert seen == expected, explain(
        subject="observations and reward of sixteen concurrent rollouts, and how many tool servers served them",
        expected=expected,
        got=seen,
        cause="state is kept by process or connection instead of by rollout",
    )


@check("VF-S-04", broken="prompt_tells_the_record")
def test_hidden_facts_stay_hidden(lab: Lab, evidence: Evidence) -> None:
    """No request, schema or log MUST hold a hidden fact before the lookup; gold MUST be valid, an untouched task 0."""
    played, requests = lab.canaries()
    tasks = ("canary/dev/0/0", "canary/dev/0/1")
    told = [request for request in requests if not any(message["role"] == "tool" for message in request["messages"])]
    texts = {
        "requests before a lookup": json.dumps(told, ensure_ascii=False),
        "schemas": json.dumps([request["tools"] for request in requests]),
        "log": played.ended.output,
        "whole rollout without a lookup": json.dumps(Seen.messages(played.traces[tasks[1]])[:-1]),
        "identity": json.dumps(played.traces[tasks[1]]["info"]["identity"]),
    }
    secrets = [secret for task in tasks for secret in lab.orders.secrets(task)]
    validated = lab.validation()
    seen = {
        "leaks": sorted(name for name, text in texts.items() if any(secret in text for secret in secrets)),
        "requests": len(told),
        "shown by the lookup": secrets[0] in json.dumps(requests),
        "gold": [row["gold"]["valid"] for row in validated],
        "untouched": [(row["noop"]["valid"], row["noop"]["rewards"]) for row in validated],
    }
    evidence.attach("requests.json", requests)
    expected = {
        "leaks": [],
        "requests": 2,
        "shown by the lookup": True,
        "gold": [True] * 4,
        "untouched": [(True, {"strict": 0.0})] * 4,
    }
    assert seen == expected, explain(
        subject="two canary rollouts on the wire, and upstream's own validation of four",
        expected=expected,
        got=seen,
        cause="ground truth rides along in a prompt, a schema, a log line or an error",
    )


@check("VF-S-05", broken="tools_are_prefixed")
def test_the_documented_command_runs_a_real_models_rollouts(lab: Lab, evidence: Evidence) -> None:
    """The documented command MUST drive a served model through the null harness, within its limits and time-outs."""
    played, requests = lab.documented()
    short = lab.short_of_time()
    traces = played.traces
    sessions = {trace["id"] for trace in traces.values()}
    seen = {
        "exit code": played.ended.exit_code,
        "rollouts": {task: of_trace(trace) for task, trace in sorted(traces.items())},
        "model turns": [Seen.turns(trace) for _, trace in sorted(traces.items())],
        "request": [set(request) for request in requests if set(request) != REQUEST_FIELDS],
        "tools": {json.dumps(request["tools"]) for request in requests},
        "keys and sessions": {(r["headers"]["authorization"], r["headers"]["session"] in sessions) for r in requests},
        "silence": {trace["agent"]["config"]["client"]["timeout"]["read"] for trace in traces.values()},
        "scripted": {bool(trace["info"].get("scripted")) for trace in traces.values()},
        "short of time": {task: of_trace(trace)[1:] for task, trace in sorted(short.traces.items())},
    }
    evidence.measure(cpu_limits=played.resolved["env"]["agent"]["timeout"]["rollout"], requests=len(requests))
    expected = {
        "exit code": 0,
        "rollouts": DOCUMENTED_ROLLOUTS,
        "model turns": [3, 3, 6, 2],
        "request": [],
        "tools": {json.dumps(Seen.offered(lab.orders))},
        "keys and sessions": {("Bearer unused", True)},
        "silence": {READ_S},
        "scripted": {False},
        "short of time": SHORT_ROLLOUTS,
    }
    assert seen == expected, explain(
        subject="the README's command against a scripted server, once as it stands and once with sixteen seconds",
        expected=expected,
        got=seen,
        cause="a default differs from the documented one, a limit does not hold, or tools are renamed",
    )


@check("VF-S-06", broken="guard_is_off")
def test_no_infrastructure_failure_is_a_reward_and_no_model_failure_escapes_one(lab: Lab, evidence: Evidence) -> None:
    """Every infrastructure failure MUST have its class and no reward; every model failure beside it MUST be scored."""
    played, keys = lab.faults()
    exit_code, rows = classified(played.folder)
    traces = played.traces
    seen: dict[str, object] = {}
    for name, key in keys.items():
        row = rows[key]
        scored_inside = (traces[key]["rewards"].get("strict") or {}).get("score")
        seen[name] = (row["source"], row["kind"], row["where"], row["reward"], scored_inside)
    evidence.attach("classes.json", rows)
    evidence.measure(cases=len(seen))
    differing = {
        name: (seen.get(name), FAULTS.get(name)) for name in seen.keys() | FAULTS if seen.get(name) != FAULTS.get(name)
    }
    assert (differing, exit_code) == ({}, 1), explain(
        subject="(source, kind, where, reward, reward that upstream keeps) by case, and the classifier's exit code",
        expected="(got, expected) of no case; 1",
        got=(differing, exit_code),
        cause="a fault is taken for the model's failure, or a model failure for a fault",
    )


@check("VF-S-07", broken="identity_is_a_constant")
def test_runs_repeat_and_name_what_they_are(lab: Lab, run: Run, evidence: Evidence) -> None:
    """A seed MUST give the same tasks and rewards, a trace MUST name the bytes that ran, an exit code any failure."""
    played, other = lab.fixture(), lab.documented()[0]
    identity = Seen.identity(played.episodes[0]["traces"][0])
    staged = run.subject.package
    files = {name: staged / name for name in identity.sources if name.startswith("gyms/")}
    files["gymqual/__init__.py"] = staged / "__init__.py"
    files |= {name: run.subject.verifiers_modules / name for name in (f"{ENVIRONMENT}.py", f"{FIXTURE}.py")}
    bare = lab.dry_run()["env"]["agent"]
    seen: Mapping[str, Any] = {
        "tasks": Seen.tasks(played) == Seen.tasks(other),
        "keys": sorted(played.traces),
        "rewards": {of_trace(trace)[1] for episode in played.episodes for trace in episode["traces"]},
        "sources": identity.sources,
        "core": identity.core,
        "upstream": (identity.upstream, identity.upstream_modified, identity.python),
        "upstream digest": identity.upstream_digest,
        "resolved": (played.resolved["env"]["taskset"]["seed"], bare["harness"]["id"], bare["runtime"]["type"]),
        "exit codes": tampered(played.folder, lab.short_of_time().folder),
    }
    evidence.attach("identity.json", identity.to_json())
    expected: Mapping[str, Any] = {
        "tasks": True,
        "keys": [f"v1/dev/0/{index}" for index in range(4)],
        "rewards": {1.0},
        "sources": {name: sha256_file(path) for name, path in files.items()},
        "core": loaded.core_on_disk(staged / "gyms"),
        "upstream": ("verifiers 0.4.0", (), f"CPython {lab.stack.version}"),
        "upstream digest": installed_digest(lab.stack, "verifiers"),
        "resolved": (0, "null", "subprocess"),
        "exit codes": {"healthy": 0, "time-outs": 1, "torn line": 2, "half a run": 2, "no run": 2},
    }
    assert seen == expected, explain(
        subject="eight rollouts twice played, what they say they are, and the classifier's exit codes",
        expected=expected,
        got=seen,
        cause="tasks depend on process or order, digests are not those of what ran, or a failure ends with 0",
    )
