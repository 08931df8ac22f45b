"""NeMo Gym, native service: what any user of upstream's HTTP routes may rely on.

Every check speaks raw HTTP to a real resources server that upstream's ``run_webserver`` serves in its own
locked environment.
"""

import asyncio
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable
from itertools import chain
from typing import Any

import httpx
import pytest

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity, ToolCall, read_identity
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.files import sha256_file
from gymqual.harness.stacks.services import GymService
from gymqual.qualification.fixtures.nemo import Serve
from gymqual.qualification.support.nemo import forgery
from gymqual.qualification.support.nemo.wire import NativeRollout, Wire, replayed
from gymqual.qualification.support.scenarios import (
    HOSTILE_BODIES,
    TURNS,
    groups,
    malformed_answers,
    right_answer,
    wait_for,
)
from gymqual.qualification.support.subjects import edited_before_and_while_it_runs, installed_digest

pytestmark = [pytest.mark.gym("nemo"), pytest.mark.cpu_smoke]

TASK = "v1/dev/0/0"
CANARY = "canary/dev/0/0"


@check("NEMO-S-01", broken="identity_is_a_constant")
def test_the_server_identifies_the_bytes_it_runs(
    nemo: Wire, service: GymService, serve: Serve, run: Run, evidence: Evidence
) -> None:
    """The server MUST be upstream's, MUST name the bytes it executes, and MUST name others once they changed."""
    answer = nemo.bridge("identity").json()
    identity = answer["identity"]
    other, asked_again = edited_before_and_while_it_runs(run, serve, _told)
    staged = {name: sha256_file(run.subject.package / name) for name in other.sources if name.startswith("gyms/")}
    seen = {
        "healthy": nemo.http.get("/healthz").json(),
        "upstream": (identity["upstream"], identity["upstream_modified"], identity["python"]),
        "upstream base": "nemo_gym.base_resources_server.SimpleResourcesServer" in answer["process"]["bases"],
        "native routes missing": forgery.NATIVE_ROUTES - set(nemo.http.get("/openapi.json").json()["paths"]),
        "sources": {name: digest for name, digest in identity["sources"].items() if name in staged},
        "core": identity["core"],
        "changed by the edit": [name for name in staged if other.sources[name] != identity["sources"].get(name)],
        "core follows": other.core == loaded.core_digest(other.sources) != identity["core"],
        "changed by an edit while it runs": asked_again != other,
        "upstream digest": identity["upstream_digest"],
    }
    expected = {
        "healthy": {"status": "ok"},
        "upstream": ("nemo-gym 0.7.0", [], f"CPython {run.stack('nemo').version}"),
        "upstream base": True,
        "native routes missing": set(),
        "sources": staged,
        "core": loaded.core_on_disk(run.subject.package / "gyms"),
        "changed by the edit": ["gyms/german/tasks.py"],
        "core follows": True,
        "changed by an edit while it runs": False,
        "upstream digest": installed_digest(run.stack("nemo"), "nemo-gym"),
    }
    evidence.attach("identity.json", answer)
    shown = {name: identity[name] for name in ("upstream", "stands_for", "python")}
    evidence.measure(**shown, deviation=run.stack("nemo").deviation)
    assert seen == expected, explain(
        subject="identity of the NeMo server",
        expected=expected,
        got=seen,
        cause="digests were not taken from the executed bytes, or another upstream is installed",
    )


@check("NEMO-S-02", broken="closed_ids_are_forgotten")
def test_upstreams_session_contract_holds(service: GymService, run: Run, evidence: Evidence) -> None:
    """The server MUST pass upstream's own check of the resources-session contract, over its real socket."""
    script = run.subject.nemo_entry.parent / "tests" / "contract_over_http.py"
    judged = subprocess.run(
        [run.stack("nemo").python, "-P", script, service.server.url, service.identity.core],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=run.folder,
        env={"PYTHONPATH": str(run.subject.python_path), "HOME": str(run.folder), "PATH": "/usr/bin:/bin"},
    )
    evidence.attach("contract.txt", judged.stdout + judged.stderr)
    assert judged.stdout.strip() == "kept", explain(
        subject="upstream's check_resources_session_contract",
        expected="kept",
        got=judged.stdout.strip() or judged.stderr[-500:],
        cause="seed is not idempotent, or close does not keep an id closed",
    )


@check("NEMO-S-03", broken="the_number_alone_pays", also=("any_number_pays", "malformed_answers_pay"))
def test_only_the_right_path_is_rewarded(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Native verify MUST pay 1.0 for the right path, and 0.0 for a wrong number, no lookup or a foreign record."""
    expected = {"oracle": 1.0, "wrong": 0.0, "guess": 0.0, "no_calculation": 0.0, "foreign": 0.0, "noop": 0.0}
    verdicts = {name: nemo.rollout(TASK).play(orders.scripts(TASK)[name]) for name in expected}
    cut = nemo.rollout(TASK)
    for call in _path(orders):
        cut.call(call)
    verdicts["truncated"] = cut.verify(right_answer(orders, TASK), truncated=True).json()
    repeated = nemo.rollout(TASK)
    for call in _path(orders):
        # As some parsers take over from the model.
        repeated.call(call, call_id="call_0")
    verdicts["repeated ids"] = repeated.verify(right_answer(orders, TASK)).json()
    hasty = nemo.rollout(TASK)
    hasty.call(_path(orders)[0])
    # Said beside the call, before its result was seen, and nothing after it.
    hasty.call(_path(orders)[1], saying=right_answer(orders, TASK))
    verdicts["said beside a call"] = hasty.verify(None).json()
    malformed = malformed_answers(orders, TASK)
    verdicts |= {name: nemo.rollout(TASK).play(script) for name, script in malformed.items()}
    evidence.attach("verdicts.json", verdicts)
    expected |= {"truncated": 0.0, "repeated ids": 1.0, "said beside a call": 0.0, **dict.fromkeys(malformed, 0.0)}
    rewards = {name: None if verdict["mask_sample"] else verdict["reward"] for name, verdict in verdicts.items()}
    assert rewards == expected, explain(
        subject="reward of scripted native episodes",
        expected=expected,
        got=rewards,
        cause="the verifier does not look at the path that led to the number, or finds one in more than a number",
    )


@check(
    "NEMO-S-04",
    broken="seed_returns_the_record",
    also=(
        "rows_tell_the_record",
        "errors_tell_the_record",
        "lookup_ignores_the_id",
        "calculator_ignores_the_expression",
    ),
)
def test_hidden_quantities_are_in_no_byte_before_lookup(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Bytes served before the right lookup MUST NOT hold a quantity or the answer, in body, header or cookie."""
    rollout = NativeRollout(nemo, CANARY)
    rollout.seed()
    for path in ("/openapi.json", "/docs", "/healthz", "/reverify_mode", "/lookup", "/nowhere"):
        nemo.http.get(path)
    for call in (*orders.scripts(CANARY)["malformed"].calls, *orders.scripts(CANARY)["foreign"].calls[:1]):
        nemo.http.post(f"/{call.tool}", content=call.arguments)
    for route in ("/verify", "/seed_session", "/close_session", "/aggregate_metrics", "/bridge/state"):
        nemo.http.post(route, json={"task_id": CANARY})
    nemo.bridge("fault", session_id=rollout.session_id)
    nemo.http.post("/lookup", content="{}")
    nemo.http.post("/verify", json=rollout.verify_body("1"))
    cookies = [b64decode(cookie.split(".")[0] + "==") for cookie in nemo.http.cookies.values()]
    before = b"\n".join([*nemo.served, *cookies])
    shown = nemo.rollout(CANARY).call(orders.scripts(CANARY)["oracle"].calls[0]).content
    leaked = [secret for secret in orders.secrets(CANARY) if secret.encode() in before]
    revealed = [secret for secret in orders.secrets(CANARY) if secret.encode() in shown]
    evidence.attach("served_before_lookup.bin", before)
    evidence.measure(bytes_searched=len(before), answers=len(nemo.served), revealed_by_lookup=len(revealed))
    assert (leaked, bool(revealed)) == ([], True), explain(
        subject="hidden numbers in the bytes before lookup; whether lookup's own answer holds any",
        expected=([], True),
        got=(leaked, revealed),
        cause="an answer other than lookup's carries the record",
    )


@check("NEMO-S-05", broken="malformed_is_a_422", also=("errors_name_the_process",))
def test_malformed_calls_are_scored_observations(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """A malformed or hostile call MUST be answered by the core's error observation, and the episode MUST go on."""
    rollout = nemo.rollout(TASK)
    wrong = {}
    for name, (tool, body) in HOSTILE_BODIES.items():
        answer = rollout.wire.http.post(f"/{tool}", content=body)
        shown = ToolCall(tool, body.decode("utf-8", "backslashreplace"))
        expected = orders.replay(TASK, [shown], None).observations[0]
        if (answer.status_code, answer.text, True) != (200, expected.text, expected.is_error):
            wrong[name] = (answer.status_code, answer.text[:200])
    evidence.measure(calls=len(HOSTILE_BODIES))
    after = {
        "health": nemo.http.get("/healthz").json()["status"],
        "right calls": [rollout.wire.http.post(f"/{c.tool}", content=c.arguments).status_code for c in _path(orders)],
    }
    assert (wrong, after) == ({}, {"health": "ok", "right calls": [200, 200]}), explain(
        subject="malformed calls with another answer; the server after them",
        expected="none; healthy, and the right calls are served",
        got=(wrong, after),
        cause="a framework parsed the body before the server could score it",
    )


@check("NEMO-S-06", broken="identity_is_not_compared")
def test_a_changed_source_identity_is_refused(nemo: Wire, evidence: Evidence) -> None:
    """A seed or open that names another source identity MUST be refused with 409 and MUST make no session."""
    rollout = NativeRollout(nemo, TASK)
    typed = rollout.seed_body(core="0" * 64)
    opened_before = nemo.state()["opened"]
    statuses = {
        "typed seed": nemo.http.post("/seed_session", json=typed).status_code,
        "legacy seed": nemo.http.post("/seed_session", json=typed["task_data"]).status_code,
        "bridge open": nemo.bridge("open", session_id="f" * 32, task_id=TASK, identity="0" * 64).status_code,
        "sessions made": nemo.state()["opened"] - opened_before,
    }
    evidence.measure(**statuses)
    expected = {"typed seed": 409, "legacy seed": 409, "bridge open": 409, "sessions made": 0}
    assert statuses == expected, explain(
        subject="opening under another identity",
        expected=expected,
        got=statuses,
        cause="the server opens without comparing what was agreed with what it runs",
    )


@check("NEMO-S-07", broken="lost_sessions_are_created")
def test_a_lost_session_is_never_an_empty_one(
    nemo: Wire, small_service: GymService, orders: GermanOrders, evidence: Evidence
) -> None:
    """A missing, forged, foreign or closed session MUST be refused as lost; nothing is created, nothing rewarded."""
    closed, foreign, valid = nemo.rollout(TASK), Wire(small_service).rollout(TASK), nemo.rollout(TASK)
    closed.close()
    foreign.close()
    cookies = dict(valid.wire.http.cookies)
    jars = {
        "missing": {},
        "closed": dict(closed.wire.http.cookies),
        "foreign": dict(foreign.wire.http.cookies),
        **{guess: forgery.forged_cookies(valid.session_id, cookies, guess) for guess in forgery.GUESSES},
        "tampered": {name: forgery.tampered(value) for name, value in cookies.items()},
    }
    opened_before = nemo.state()["opened"]
    answers = {}
    for name, jar in jars.items():
        with httpx.Client(base_url=nemo.http.base_url, cookies=jar, trust_env=False) as stranger:
            call = stranger.post("/lookup", content=_path(orders)[0].arguments)
            verdict = stranger.post("/verify", json=valid.verify_body("1"))
        answers[name] = [(each.status_code, _kind(each), b'"reward"' in each.content) for each in (call, verdict)]
    made = nemo.state()["opened"] - opened_before
    evidence.attach("answers.json", answers)
    expected = {name: [(404, "session_lost", False)] * 2 for name in jars}
    assert (answers, made) == (expected, 0), explain(
        subject="(status, kind, reward present) of a call and a verify without a session; sessions made",
        expected=(expected, 0),
        got=(answers, made),
        cause="a request without a known session gets a fresh one instead of a refusal",
    )


@check("NEMO-S-08", broken="verdict_follows_last_answer")
def test_the_verdict_never_changes_once_given(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """The first verdict MUST stand whatever is verified later, and every later call MUST be refused."""
    rollout = nemo.rollout(TASK)
    first = rollout.play(orders.scripts(TASK)["wrong"])
    later = rollout.wire.http.post("/lookup", content=_path(orders)[0].arguments)
    second = rollout.verify(orders.scripts(TASK)["oracle"].answer).json()
    seen = {
        "outcomes": [first["outcome"], second["outcome"]],
        "rewards": [first["reward"], second["reward"]],
        "later call": (later.status_code, later.json()["kind"]),
    }
    evidence.measure(**seen)
    expected = {"outcomes": ["wrong_answer"] * 2, "rewards": [0.0, 0.0], "later call": (400, "protocol")}
    assert seen == expected, explain(
        subject="an episode verified with a wrong and then with the right number",
        expected=expected,
        got=seen,
        cause="the episode is judged again on every verify",
    )


@check("NEMO-S-09", broken="siblings_share_a_session", also=("siblings_share_their_calls",))
def test_sixteen_interleaved_sessions_are_isolated(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Sixteen concurrent sessions MUST each see their own record, their own counts and their own reward."""
    # Four groups of four siblings: a trainer plays the rollouts of one task at once.
    tasks, scripts = zip(*groups(orders, [f"v1/dev/7/{index}" for index in range(4)]), strict=True)
    rollouts = [nemo.rollout(task) for task in tasks]

    async def step(number: int, turn: int) -> list[str]:
        # Threads of one loop: all posts of a turn are in flight together.
        calls = scripts[number].calls[turn : turn + 1]
        return [(await asyncio.to_thread(rollouts[number].call, call)).text for call in calls]

    async def interleave() -> list[list[list[str]]]:
        return [await asyncio.gather(*(step(number, turn) for number in range(16))) for turn in range(TURNS)]

    shown = [chain.from_iterable(turns) for turns in zip(*asyncio.run(interleave()), strict=True)]
    verdicts = [rollout.verify(script.answer).json() for rollout, script in zip(rollouts, scripts, strict=True)]
    replays = [orders.replay(task, script.calls, script.answer) for task, script in zip(tasks, scripts, strict=True)]
    seen: list[object] = [
        (*texts, verdict.get("reward"), verdict.get("errors")) for texts, verdict in zip(shown, verdicts, strict=True)
    ]
    expected: list[object] = [
        (*(o.text for o in r.observations), r.verdict.reward, r.verdict.parts["errors"]) for r in replays
    ]
    # A retry of an episode is another episode: it must not find the first one's session.
    seen.append(nemo.http.post("/seed_session", json=rollouts[0].seed_body(attempt=1)).status_code)
    expected.append(400)
    evidence.attach("sessions.json", {"seen": seen, "expected": expected})
    assert seen == expected, explain(
        subject="observations, reward and errors of sixteen interleaved sessions; another attempt's seed",
        expected=expected,
        got=seen,
        cause="state is kept by process, connection or task instead of by session",
    )


@check("NEMO-S-10", broken="abandoned_sessions_stay")
def test_capacity_is_bounded_and_comes_back(small_service: GymService, evidence: Evidence) -> None:
    """One session over capacity MUST be refused, a close MUST make room, and abandoned ones MUST expire."""
    wire = Wire(small_service)
    wait_for(lambda: wire.state()["open"] == 0, limit_s=12)
    rollouts = [NativeRollout(Wire(small_service), TASK) for _ in range(5)]
    admitted = [rollout.seed().status_code for rollout in rollouts[:3]]
    refused = rollouts[3].seed()
    rollouts[0].close()
    seen = {
        "up to capacity": admitted,
        "one more": (refused.status_code, _kind(refused)),
        "after a close": rollouts[4].seed().status_code,
        # One of them is in use all the time, for longer than an abandoned one lasts.
        "in use": {_pause_then(rollouts[4].call, ToolCall("lookup", "{}")).status_code for _ in range(8)},
        "abandoned": rollouts[1].call(ToolCall("lookup", "{}")).status_code,
        "open": wire.state()["open"],
        "all expire": wait_for(lambda: wire.state()["open"] == 0, limit_s=8),
    }
    evidence.measure(state=wire.state())
    expected = {
        "up to capacity": [200, 200, 200],
        "one more": (503, "capacity"),
        "after a close": 200,
        "in use": {200},
        "abandoned": 404,
        "open": 1,
        "all expire": True,
    }
    assert seen == expected, explain(
        subject="a server with room for three sessions",
        expected=expected,
        got=seen,
        cause="slots are not counted, not freed by close, or never reclaimed from abandoned sessions",
    )


@check("NEMO-S-11", broken="fault_is_forgotten", also=("quantities_are_drawn_anew",))
def test_replay_agrees_and_a_fault_sticks(nemo: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Observations and reward MUST equal the independent replay, and a service fault MUST stick and mask."""
    disagreements = [
        f"{task} {name}"
        for task in (TASK, "v1/train/43/1", "extended/dev/0/0")
        for name, script in orders.scripts(task).items()
        if nemo.rollout(task).outcome_of(script) != replayed(orders.replay(task, script.calls, script.answer), script)
    ]
    faulty = nemo.rollout(TASK)
    nemo.bridge("fault", session_id=faulty.session_id)
    statuses = [faulty.call(call).status_code for call in (*_path(orders), *_path(orders))]
    masked = faulty.verify(right_answer(orders, TASK)).json()
    told_otherwise = {}
    for name, falsify in FALSIFIED.items():
        rollout = nemo.rollout(TASK)
        for call in _path(orders):
            rollout.call(call)
        falsify(rollout.output)
        told_otherwise[name] = rollout.verify(right_answer(orders, TASK)).json()
    seen = {
        "disagreeing": disagreements,
        "calls after a fault": statuses,
        "bridge verify": nemo.bridge("verify", session_id=faulty.session_id, answer="1").status_code,
        "faulted": _mask(masked),
        **{name: _mask(verdict) for name, verdict in told_otherwise.items()},
    }
    evidence.attach("masked.json", {"faulted": masked, **told_otherwise})
    expected = {
        "disagreeing": [],
        "calls after a fault": [500] * 4,
        "bridge verify": 500,
        "faulted": (True, 0.0, "german_orders:service_error"),
        **dict.fromkeys(FALSIFIED, (True, 0.0, "german_orders:replay_disagreement")),
    }
    assert seen == expected, explain(
        subject="episodes that replay otherwise; a faulted session; a trajectory that shows what was not served",
        expected=expected,
        got=seen,
        cause="the server's state differs from the core's, or a fault is cleared or not seen",
    )


FALSIFIED: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "changed output": lambda output: output[1].update(output=output[1]["output"] + " "),
    "dropped call": lambda output: output.__delitem__(slice(2, 4)),
    "invented call": lambda output: output.extend(
        [
            {"type": "function_call", "call_id": "more", "name": "calculator", "arguments": '{"expression":"1+1"}'},
            {"type": "function_call_output", "call_id": "more", "output": "3"},
        ]
    ),
}
"""What could become of a trajectory between server and verify: none of it is what was served."""


def _mask(verdict: dict[str, Any]) -> tuple[object, ...]:
    """Return (masked, reward, failure kind) of a native verify response."""
    return verdict.get("mask_sample"), verdict.get("reward"), verdict.get("failure_kind")


def _told(service: GymService) -> GymIdentity:
    return read_identity(Wire(service).bridge("identity").json()["identity"])


def _path(orders: GermanOrders) -> tuple[ToolCall, ...]:
    return orders.scripts(TASK)["oracle"].calls


def _kind(answer: httpx.Response) -> str | None:
    """Return the kind of infrastructure failure that an answer names."""
    try:
        return answer.json().get("kind")
    except ValueError:
        return None


def _pause_then(call: Callable[[ToolCall], httpx.Response], argument: ToolCall) -> httpx.Response:
    time.sleep(0.5)
    return call(argument)
