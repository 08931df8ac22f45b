"""OpenEnv, native service: what any user of upstream's WebSocket protocol may rely on.

Every check speaks raw WebSocket, or upstream's stock SDK in a process of its own, to a real server.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity, ToolCall, read_identity
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import Planted, check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.fault_proxy import Fault, FaultProxy
from gymqual.harness.records.files import sha256_file
from gymqual.harness.stacks.services import GymService
from gymqual.qualification.fixtures.openenv import Serve
from gymqual.qualification.support.openenv.endurance import (
    RESETS,
    RSS_GROWTH_BYTES,
    WARM_UP,
    growth,
    reset_and_play,
    within,
)
from gymqual.qualification.support.openenv.frames import MISUSES, REFUSED, SCORED, consequences
from gymqual.qualification.support.openenv.leaving import client_process, frees_its_slot, kill
from gymqual.qualification.support.openenv.sdk import played_by_sdk, sdk_client
from gymqual.qualification.support.openenv.wire import Socket, Wire, kind, observed, outcome, transcript, wired
from gymqual.qualification.support.scenarios import (
    TURNS,
    groups,
    malformed_answers,
    right_answer,
    right_path,
    wait_for,
)
from gymqual.qualification.support.subjects import edited_before_and_while_it_runs, installed_digest

pytestmark = [pytest.mark.gym("openenv"), pytest.mark.cpu_smoke]

TASK = "v1/dev/0/0"
CANARY = "canary/dev/0/0"


@check("OPENENV-N-01", broken="identity_is_a_constant")
def test_the_server_identifies_the_bytes_it_runs(
    wire: Wire, service: GymService, serve: Serve, run: Run, evidence: Evidence
) -> None:
    """The server MUST be upstream's without its web UI, and MUST name the bytes it executes, others once changed."""
    answer = wire.bridge("identity")
    identity, process = answer["identity"], answer["process"]
    other, asked_again = edited_before_and_while_it_runs(run, serve, _told)
    staged = {name: sha256_file(run.subject.package / name) for name in other.sources if name.startswith("gyms/")}
    seen = {
        "upstream": (identity["upstream"], identity["upstream_modified"], identity["python"]),
        "upstream digest": identity["upstream_digest"],
        "loaded": (process["gradio"], process["torch"], wire.http.get("/web").status_code),
        "sources": {name: digest for name, digest in identity["sources"].items() if name in staged},
        "core": identity["core"],
        "changed by the edit": [name for name in staged if other.sources[name] != identity["sources"].get(name)],
        "core follows": other.core == loaded.core_digest(other.sources) != identity["core"],
        "changed by an edit while it runs": asked_again != other,
        "session time-out": wire.state()["session_timeout"],
    }
    expected = {
        "upstream": ("openenv 0.9.0", [], f"CPython {run.stack('openenv').version}"),
        "upstream digest": installed_digest(run.stack("openenv"), "openenv"),
        "loaded": (False, False, 404),
        "sources": staged,
        "core": loaded.core_on_disk(run.subject.package / "gyms"),
        "changed by the edit": ["gyms/german/tasks.py"],
        "core follows": True,
        "changed by an edit while it runs": False,
        "session time-out": None,
    }
    evidence.attach("identity.json", answer)
    assert seen == expected, explain(
        subject="identity of the OpenEnv server",
        expected=expected,
        got=seen,
        cause="digests were not taken from the executed bytes, or another upstream or its web UI is loaded",
    )


@check(
    "OPENENV-N-02",
    broken="reward_is_zero_from_the_start",
    also=(
        "any_number_pays",
        "malformed_answers_pay",
        "lookup_ignores_the_id",
        "calculator_ignores_the_expression",
        "quantities_are_drawn_anew",
        "errors_tell_the_record",
    ),
)
def test_sdk_raw_frames_and_replay_tell_the_same(
    wire: Wire, service: GymService, run: Run, orders: GermanOrders, evidence: Evidence
) -> None:
    """Observation, reward, done and state MUST be equal by SDK, by frame and by replay, and no reward MUST be null."""
    told: dict[str, list[Any]] = {"SDK": [], "frames": [], "replay": []}
    with sdk_client(run.stack("openenv"), service.server.url, run.folder) as sdk:
        for script in (*orders.scripts(TASK).values(), *malformed_answers(orders, TASK).values()):
            replay = orders.replay(TASK, script.calls, script.answer)
            session = wire.socket()
            begun, before = session.reset(TASK), session.state()
            steps = [begun, *session.play(script)]
            told["frames"].append([*map(observed, steps), outcome(before), outcome(session.state())])
            told["SDK"].append(played_by_sdk(sdk.ask, TASK, script.calls, script.answer, service.secret))
            texts = [(seen.text, seen.is_error, None, False) for seen in replay.observations]
            verdict = replay.verdict
            ended = (verdict.reward, True, verdict.outcome, len(script.calls))
            begun = ("", False, None, False)
            told["replay"].append([begun, *texts, ("", False, verdict.reward, True), (None, False, None, 0), ended])
    served = b"\n".join(wire.served)
    evidence.attach("told.json", told)
    evidence.attach("frames.bin", served)
    null_rewards = served.count(b'"reward":null,"done":false') >= sum(len(each) - 3 for each in told["replay"])
    shown = next((n for n, due in enumerate(told["replay"]) if not due == told["SDK"][n] == told["frames"][n]), 0)
    assert (told["SDK"], told["frames"], null_rewards) == (told["replay"], told["replay"], True), explain(
        subject="every script by the stock SDK and by raw frames; null rewards in the served bytes",
        expected=told["replay"][shown],
        got=(told["SDK"][shown], told["frames"][shown], null_rewards),
        cause="a default stands where there is no reward yet, or the server judges otherwise than the core",
    )


@check(
    "OPENENV-N-03",
    broken="state_holds_the_record",
    also=("prompt_tells_the_record", "errors_tell_the_record"),
)
def test_hidden_quantities_are_in_no_byte_before_lookup(wire: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Bytes served before the right lookup MUST NOT hold a quantity or the answer: schema, state, errors and all."""
    session = wire.begin(CANARY)
    for path in ("/schema", "/metadata", "/health", "/state", "/openapi.json", "/list_environments", "/nowhere"):
        wire.http.get(path)
    wire.http.post("/reset", json={"task_id": CANARY})
    for name in ("malformed", "foreign"):
        for call in orders.scripts(CANARY)[name].calls[:1] if name == "foreign" else orders.scripts(CANARY)[name].calls:
            session.call(call)
            wire.http.post("/step", json={"action": {"tool": call.tool, "arguments": call.arguments}})
            session.state()
    session.verify("1", secret="a guess")
    for frame in ("{", "[]", {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}}):
        wire.begin(CANARY).send(frame)
    wire.bridge("inject", episode_id=session.episode_id, fail=True)
    session.call(ToolCall("lookup", "{}"))
    before = b"\n".join(wire.served)
    shown = json.dumps(wire.begin(CANARY).call(right_path(orders, CANARY)[0]), ensure_ascii=False)
    leaked = [secret for secret in orders.secrets(CANARY) if secret.encode() in before]
    revealed = [secret for secret in orders.secrets(CANARY) if secret in shown]
    evidence.attach("served_before_lookup.bin", before)
    evidence.measure(bytes_searched=len(before), revealed_by_lookup=len(revealed))
    assert (leaked, bool(revealed)) == ([], True), explain(
        subject="hidden numbers in the bytes before lookup; whether lookup's own answer holds any",
        expected=([], True),
        got=(leaked, revealed),
        cause="state, schema or an error carries the record",
    )


@check("OPENENV-N-04", broken="unknown_tasks_become_another")
def test_every_misuse_has_its_class(wire: Wire, evidence: Evidence) -> None:
    """Each malformed frame MUST be scored, refused or end its own session as documented, and harm no other one."""
    bystander = wire.begin(TASK)
    seen = {name: consequences(lambda: wire.begin(TASK), frame) for name, (frame, _, _) in MISUSES.items()}
    expected = {name: (consequence, code) for name, (_, consequence, code) in MISUSES.items()}
    unbegun = wire.socket()
    seen["a call before a reset"] = (REFUSED, kind(unbegun.call(ToolCall("lookup", "{}"))))
    expected["a call before a reset"] = (REFUSED, "protocol")
    bystander_answers = observed(bystander.call(ToolCall("calculator", '{"expression":"3*4"}')))
    evidence.measure(seen=seen, scored=sum(consequence == SCORED for consequence, _ in seen.values()))
    wrong = {name: (seen[name], expected[name]) for name in seen if seen[name] != expected[name]}
    assert (wrong, bystander_answers) == ({}, ("12", False, None, False)), explain(
        subject="malformed frames with another consequence (got, expected); another session's next call",
        expected=({}, ("12", False, None, False)),
        got=(wrong, bystander_answers),
        cause="what a model may write is refused, or what no client may send is taken",
    )


@check("OPENENV-N-05", broken="verdict_follows_last_answer")
def test_the_verdict_never_changes_once_given(wire: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """The first verdict MUST stand, every later call MUST be refused without a trace, a reset MUST begin anew."""
    session = wire.begin(TASK)
    for call in right_path(orders, TASK):
        session.call(call)
    rewards = [session.verify("1")["data"]["reward"]]
    after = session.state()
    rewards += [session.verify(right_answer(orders, TASK))["data"]["reward"], session.verify(None)["data"]["reward"]]
    later = kind(session.call(right_path(orders, TASK)[0]))
    unchanged = session.state() == after
    session.reset(TASK)
    anew = session.play(orders.scripts(TASK)["oracle"])[-1]["data"]["reward"]
    seen = (rewards, later, unchanged, anew)
    evidence.measure(rewards=rewards, later=later, anew=anew)
    assert seen == ([0.0, 0.0, 0.0], "protocol", True, 1.0), explain(
        subject="rewards of a wrong, the right and no answer; a later call; state unchanged; a new episode's reward",
        expected=([0.0, 0.0, 0.0], "protocol", True, 1.0),
        got=seen,
        cause="the episode is judged again, or goes on after its verdict",
    )


@check("OPENENV-N-06", broken="anyone_can_verify")
def test_only_the_client_can_end_an_episode(wire: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """A verification without the client's secret MUST be refused, and the episode MUST go on to its reward."""
    session = wire.begin(TASK)
    guesses = ["", "verify", "0" * 64, wire.service.secret[:-1]]
    refused = {kind(session.verify(right_answer(orders, TASK), secret=guess)) for guess in guesses}
    offered = json.dumps([orders.tools, orders.prompt(TASK)])
    verdict = session.play(orders.scripts(TASK)["oracle"])[-1]
    seen = (refused, "verif" in offered, observed(verdict))
    evidence.measure(guesses=len(guesses), refused=sorted(refused))
    assert seen == ({"protocol"}, False, ("", False, 1.0, True)), explain(
        subject="verifications with a guessed secret; whether a model is offered one; the episode's end",
        expected=({"protocol"}, False, ("", False, 1.0, True)),
        got=seen,
        cause="the secret is not compared, or a refused verification ends the episode",
    )


@check("OPENENV-N-07", broken="siblings_share_an_episode", also=("siblings_share_their_calls",))
def test_sixteen_interleaved_sessions_are_isolated(wire: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """Sixteen concurrent sessions MUST each see their own record, their own counts and their own reward."""
    # Four groups of four siblings: a trainer plays the rollouts of one task at once.
    tasks, scripts = zip(*groups(orders, [f"v1/dev/7/{index}" for index in range(4)]), strict=True)
    sessions, everyone = [wire.begin(task) for task in tasks], Barrier(16)

    def episode(number: int) -> list[Any]:
        answers = []
        for turn in range(TURNS):
            everyone.wait(timeout=60)
            answers += [observed(sessions[number].call(call)) for call in scripts[number].calls[turn : turn + 1]]
        everyone.wait(timeout=60)
        return [*answers, observed(sessions[number].verify(scripts[number].answer)), sessions[number].state()]

    with ThreadPoolExecutor(16) as pool:
        seen = list(pool.map(episode, range(16)))
    expected = []
    for session, task, script in zip(sessions, tasks, scripts, strict=True):
        replay = orders.replay(task, script.calls, script.answer)
        reward, steps = replay.verdict.reward, len(script.calls)
        state = {"episode_id": session.episode_id, "step_count": steps, "task_id": task, "done": True, "reward": reward}
        texts = [(shown.text, shown.is_error, None, False) for shown in replay.observations]
        expected.append([*texts, ("", False, reward, True), {**state, "outcome": replay.verdict.outcome}])
    evidence.attach("sessions.json", {"seen": seen, "expected": expected})
    shown = next((number for number, due in enumerate(expected) if seen[number] != due), 0)
    assert seen == expected, explain(
        subject="observations, reward and state of sixteen interleaved sessions",
        expected=expected[shown],
        got=seen[shown],
        cause="state is kept by process or task instead of by session",
    )


@check("OPENENV-N-08", broken="lost_clients_keep_their_slot")
def test_capacity_is_bounded_and_comes_back(
    small_wire: Wire, small_service: GymService, orders: GermanOrders, evidence: Evidence
) -> None:
    """One session over capacity MUST be refused, and every end of a client, silence included, MUST free its slot."""
    wait_for(lambda: small_wire.state()["open"] == 0, limit_s=20)
    kept = [small_wire.begin(TASK) for _ in range(2)]
    with FaultProxy(small_service.server.port) as proxy, wired(small_service, proxy.port) as through:
        freed = {
            "clean close": frees_its_slot(small_wire, Socket.close, small_wire.begin),
            "TCP abort": frees_its_slot(small_wire, Socket.abort, small_wire.begin),
            "client killed": frees_its_slot(small_wire, kill, lambda task: client_process(small_service, task)),
            "half open": frees_its_slot(small_wire, lambda _: setattr(proxy, "fault", Fault.STALL), through.begin),
        }
    third = small_wire.begin(TASK)
    refused = kind(small_wire.socket().reset(TASK))
    solved = [observed(session.play(orders.scripts(TASK)["oracle"])[-1])[2] for session in (*kept, third)]
    evidence.measure(freed=freed, state=small_wire.state())
    expected = (dict.fromkeys(freed, True), "CAPACITY_REACHED", [1.0] * 3)
    assert (freed, refused, solved) == expected, explain(
        subject="slots freed by each end; a fourth session of three; rewards of those that stayed",
        expected=expected,
        got=(freed, refused, solved),
        cause="a slot is counted wrongly, or freed only by the client's own farewell",
    )


@check("OPENENV-N-09", broken="mcp_reaches_sessions")
def test_http_and_mcp_routes_touch_no_session(small_wire: Wire, orders: GermanOrders, evidence: Evidence) -> None:
    """HTTP reset, step and state, MCP, and attaching by id MUST neither touch a WebSocket session nor take a slot."""
    wait_for(lambda: small_wire.state()["open"] == 0, limit_s=20)
    session = small_wire.begin(TASK)
    create = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1}
    internal = session.send({"type": "mcp", "data": create})["data"].get("result", {}).get("session_id", "none")
    before = session.state()
    for route, body in _strange_posts(internal, session.episode_id):
        small_wire.http.post(route, json=body)
    small_wire.http.get("/state")
    attached = kind(small_wire.socket(f"?session_id={internal}").send({"type": "state"}))
    mcp_socket = _refuses_mcp_socket(small_wire)
    seen = (session.state() == before, small_wire.state()["open"], attached, mcp_socket)
    solved = observed(session.play(orders.scripts(TASK)["oracle"])[-1])[2]
    evidence.measure(seen=seen, solved=solved)
    assert (seen, solved) == ((True, 1, "SESSION_ERROR", True), 1.0), explain(
        subject="state unchanged, sessions open, attaching by id, MCP socket refused; the session's reward",
        expected=((True, 1, "SESSION_ERROR", True), 1.0),
        got=(seen, solved),
        cause="an upstream route reaches, ends or opens sessions that no socket of its own holds",
    )


@check("OPENENV-N-10", broken="sessions_leak")
def test_260_sequential_resets_in_a_new_session_each(
    service: GymService, orders: GermanOrders, evidence: Evidence
) -> None:
    """260 sessions with one reset each MUST all work and leave no memory, descriptor or slot behind."""

    def sessions(count: int) -> list[Any]:
        wrong = []
        for number in range(count):
            with wired(service) as wire:
                wrong += reset_and_play(wire.socket(), number, orders)
        return wrong

    seen = growth(service, sessions)
    evidence.measure(**seen)
    assert within(seen), explain(
        subject=f"{RESETS} sessions after {WARM_UP} of warm-up",
        expected=f"no wrong answer, at most {RSS_GROWTH_BYTES} bytes, no descriptor, no slot",
        got=seen,
        cause="what a session holds is not freed with it",
    )


@check("OPENENV-N-11", broken="resets_leak")
def test_260_sequential_resets_of_one_session(service: GymService, orders: GermanOrders, evidence: Evidence) -> None:
    """One session reset 260 times MUST begin anew each time and leave no memory, descriptor or slot behind."""

    def resets(count: int) -> list[Any]:
        with wired(service) as wire:
            session = wire.socket()
            return [wrong for number in range(count) for wrong in reset_and_play(session, number, orders)]

    seen = growth(service, resets)
    evidence.measure(**seen)
    assert within(seen), explain(
        subject=f"{RESETS} resets of one session after {WARM_UP} of warm-up",
        expected=f"no wrong answer, at most {RSS_GROWTH_BYTES} bytes, no descriptor, no slot",
        got=seen,
        cause="an episode outlives its reset, or shows in the next one",
    )


@check("OPENENV-N-12", broken="errors_name_the_process")
def test_episodes_repeat_over_reset_and_restart(
    wire: Wire, serve: Serve, orders: GermanOrders, defect: Planted | None, evidence: Evidence
) -> None:
    """The same calls MUST give the same bytes after a reset, in a new session and in servers of other hash seeds."""
    # Python draws a fresh hash seed for every process, and no server is given one.
    others = [serve() for _ in range(2)]
    if defect:
        for other in others:
            Wire(other).bridge("defect", name=defect.defect)
    session = wire.socket()
    told = {
        "reset": [transcript(session, orders), transcript(session, orders)],
        "new session": [transcript(wire.socket(), orders)],
        "restart": [transcript(Wire(other).socket(), orders) for other in others],
    }
    evidence.measure(pids=[service.server.pid for service in (wire.service, *others)])
    distinct = len({json.dumps(transcript) for transcripts in told.values() for transcript in transcripts})
    assert distinct == 1, explain(
        subject="different transcripts of the same calls over reset, session and restart",
        expected=1,
        got=distinct,
        cause="an observation holds an id, a clock, or the order of a set",
    )


@check("OPENENV-N-13", broken="steps_hold_all_sessions")
def test_a_slow_step_does_not_block_another_session(wire: Wire, evidence: Evidence) -> None:
    """While one session's step takes its time, another session's steps MUST be answered."""
    slow, quick, order = wire.begin(TASK), wire.begin(TASK), []
    wire.bridge("inject", episode_id=slow.episode_id, delay_s=4.0)
    call = ToolCall("calculator", '{"expression":"3*4"}')

    def step(name: str, session: Socket, count: int) -> None:
        answers = {observed(session.call(call)) for _ in range(count)}
        order.append((name, answers))

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(step, "slow", slow, 1)
        # So that the slow step has begun.
        time.sleep(0.5)
        pool.submit(step, "quick", quick, 20).result(timeout=60)
        waiting.result(timeout=60)
    evidence.measure(order=[name for name, _ in order])
    answer = {("12", False, None, False)}
    assert order == [("quick", answer), ("slow", answer)], explain(
        subject="which of two sessions was answered first, and with what",
        expected=["quick", "slow"],
        got=order,
        cause="a step runs on the event loop or under a lock of all sessions",
    )


@check("OPENENV-N-14", broken="traces_are_printed")
def test_rough_ends_leave_no_traceback(
    wire: Wire, service: GymService, defect: Planted | None, evidence: Evidence
) -> None:
    """Clients that leave in the middle of a step, and every misuse, MUST leave no traceback in the server's log."""
    # From the server's start, unless defects of other checks may have left theirs.
    since = service.server.log.stat().st_size if defect else 0
    for leave in (Socket.abort, Socket.close):
        session = wire.begin(TASK)
        wire.bridge("inject", episode_id=session.episode_id, delay_s=0.5)
        session.connection.send(json.dumps(session.call_frame(ToolCall("lookup", "{}"))))
        leave(session)
    for frame, _, _ in MISUSES.values():
        wire.begin(TASK).send(frame)
    wire.close()
    freed = wait_for(lambda: wire.state()["open"] == 0, limit_s=30)
    log = service.server.log.read_bytes()[since:].decode(errors="replace")
    evidence.attach("server.log", log)
    seen = (freed, log.count("Traceback"))
    assert seen == (True, 0), explain(
        subject="all sessions ended; tracebacks in the log of the shared server",
        expected=(True, 0),
        got=(freed, log[-2000:]),
        cause="an answer is sent into a closed socket, or an exception is not answered",
    )


def _told(service: GymService) -> GymIdentity:
    with wired(service) as wire:
        return read_identity(wire.bridge("identity")["identity"])


def _strange_posts(session_id: str, episode_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return posts that upstream's HTTP routes would take, some of them naming a running session."""
    rpc = {"jsonrpc": "2.0", "id": 1}
    return [
        ("/reset", {"task_id": TASK, "episode_id": episode_id}),
        ("/step", {"action": {"tool": "lookup", "arguments": "{}"}, "episode_id": episode_id}),
        *[("/mcp", {**rpc, "method": "openenv/session/create"})] * 3,
        ("/mcp", {**rpc, "method": "tools/list", "params": {"session_id": session_id}}),
        ("/mcp/", {**rpc, "method": "openenv/session/close", "params": {"session_id": session_id}}),
        ("/mcp", {**rpc, "method": "openenv/session/close", "params": {"session_id": session_id}}),
    ]


def _refuses_mcp_socket(wire: Wire) -> bool:
    try:
        with connect(f"ws://{wire.address}/mcp", proxy=None):
            return False
    except InvalidStatus:
        return True
