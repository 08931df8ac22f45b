"""NeMo Gym, actual client: what the trainer's own client makes of a real NeMo server.

The client under test is the one that training uses; nothing of upstream is imported beside it.
"""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import psutil
import pytest

from gymqual.gyms.base import Kind, Replay, Script, ToolCall
from gymqual.gyms.blocking import BlockingGym, BlockingSession
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.nemo.client import NemoGym
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.fault_proxy import Fault, FaultProxy
from gymqual.harness.stacks.services import GymService
from gymqual.qualification.fixtures.nemo import Connect, Serve
from gymqual.qualification.support.ends import disagreements, fault_and_reset, three_ends
from gymqual.qualification.support.nemo.wire import Wire
from gymqual.qualification.support.scenarios import (
    HOSTILE_CALLS,
    MALFORMED_CALLS,
    async_fault_of,
    fault_of,
    play,
    play_async,
    right_answer,
    right_path,
    told,
)
from gymqual.qualification.support.subjects import edited_subject

pytestmark = [pytest.mark.gym("nemo"), pytest.mark.cpu_smoke]

TASK = "v1/dev/0/0"
SHORT_S = 2.5
"""Deadline of clients that will meet a fault, seconds."""
BOUND_S = 10 * SHORT_S + 15
"""What any faulted call may take on a busy machine; a hang takes for ever."""


@check("NEMO-C-01", broken="ids_are_a_counter")
def test_every_rollout_has_a_fresh_opaque_id(nemo: Wire, connect: Connect, evidence: Evidence) -> None:
    """Every rollout MUST get an id of at least 128 random bits, and an id MUST NOT open a second rollout."""
    gym = connect()
    sessions = [gym.open(TASK) for _ in range(64)]
    ids = [session.id for session in sessions]
    agreed = {"task_id": TASK, "identity": gym.identity().digest}
    while_open = nemo.bridge("open", session_id=ids[0], **agreed).json().get("kind")
    sessions[0].close()
    once_closed = nemo.bridge("open", session_id=ids[0], **agreed).json().get("kind")
    # Of 64 random hex digits hardly ever fewer than 10 of the 16 differ; of a counter's leading ones, none.
    digits = min(len({session_id[position] for session_id in ids}) for position in range(32))
    seen: dict[str, object] = {"ids": len(set(ids)), "shortest": min(map(len, ids)), "random": digits >= 8}
    seen["opened again"] = [while_open, once_closed]
    seen["short id"] = nemo.bridge("open", session_id="f" * 31, **agreed).json().get("kind")
    evidence.measure(**seen, fewest_digits_in_a_position=digits)
    expected: dict[str, object] = {
        "ids": 64,
        "shortest": 32,
        "random": True,
        "opened again": ["protocol", "session_lost"],
    }
    expected["short id"] = "protocol"
    assert seen == expected, explain(
        subject="64 session ids in hex, and opening the first one again",
        expected=expected,
        got=seen,
        cause="ids are counted or derived, or the server reopens one that it knows",
    )


@check("NEMO-C-02", broken="the_id_is_shown")
def test_the_model_sees_nothing_of_the_machinery(
    connect: Connect, service: GymService, orders: GermanOrders, evidence: Evidence
) -> None:
    """Session id, secret, URL, nonce and digests MUST NOT occur in anything a model could see."""
    gym = connect()
    ids, visible = [], [json.dumps([orders.prompt(TASK), orders.tools], ensure_ascii=False)]
    for calls in (HOSTILE_CALLS, *(script.calls for script in orders.scripts(TASK).values())):
        with gym.open(TASK) as session:
            ids.append(session.id)
            visible += [session.call(call.tool, call.arguments).text for call in calls]
    identity = gym.identity()
    hidden = [*ids, service.secret, service.server.url, service.process["nonce"], identity.core, identity.digest]
    shown = [part for part in hidden if any(part in text for text in visible)]
    evidence.attach("visible.json", visible)
    evidence.measure(texts=len(visible), hidden=len(hidden))
    assert shown == [], explain(
        subject="prompt, tool schemas and observations of all scripts and hostile calls",
        expected="nothing of ids, secret, URL, nonce or digests",
        got=shown,
        cause="an error text or an observation carries what only client and server may know",
    )


@check("NEMO-C-03", broken="reward_is_shaped_by_the_client")
def test_the_clients_verdict_is_the_native_one(
    nemo: Wire, service: GymService, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """The client's verdict, blocking or on an event loop, MUST be upstream's native ``/verify`` of the episode."""
    names = ("oracle", "wrong", "noop", "spam", "foreign", "guess", "no_calculation")
    scripts = [orders.scripts(TASK)[name] for name in names]
    gym = connect()
    native = [nemo.rollout(TASK).play(script) for script in scripts]
    seen: dict[str, list[object]] = {
        "blocking": [told(play(gym, TASK, script).verdict) for script in scripts],
        "event loop": [told(replay.verdict) for replay in asyncio.run(_play_at_once(service, orders, scripts))],
    }
    with gym.open(TASK) as session:
        for call in right_path(orders, TASK):
            session.call(call.tool, call.arguments)
        seen["truncated"] = [session.verify(right_answer(orders, TASK), truncated=True).outcome]
    parts = ("lookup", "calculation", "answer", "errors")
    expected = [(v["reward"], v["strict"], v["outcome"], {part: v[part] for part in parts}) for v in native]
    evidence.attach("verdicts.json", {**seen, "native": expected})
    assert seen == {"blocking": expected, "event loop": expected, "truncated": ["truncated"]}, explain(
        subject=f"verdicts of the scripts {names} through the client and by native /verify",
        expected=expected,
        got=seen,
        cause="the client computes, rounds or shapes what it should pass on",
    )


@check("NEMO-C-04", broken="malformed_calls_raise")
def test_malformed_calls_become_observations(connect: Connect, orders: GermanOrders, evidence: Evidence) -> None:
    """Whatever a model writes MUST come back as an error observation, and the episode MUST go on to its reward."""
    # A lone surrogate is what a decoder may make of half a character.
    calls = [*MALFORMED_CALLS, ToolCall("calculator", '{"expression": "\ud800"}'), ToolCall("\ud800", "{}")]
    with connect().open(TASK) as session:
        shown = {fault_of(lambda call=call: session.call(call.tool, call.arguments).is_error) for call in calls}
        for call in right_path(orders, TASK):
            fault_of(lambda call=call: session.call(call.tool, call.arguments))
        reward = fault_of(lambda: session.verify(right_answer(orders, TASK)).reward)
    evidence.measure(calls=len(calls))
    assert (shown, reward) == ({(None, True)}, (None, 1.0)), explain(
        subject=f"(exception, is_error) of {len(calls)} malformed or hostile calls; then the reward of the right path",
        expected=({(None, True)}, (None, 1.0)),
        got=(shown, reward),
        cause="the client decodes arguments, or takes a model's failure for the infrastructure's",
    )


@check("NEMO-C-05", broken="identity_is_checked_once")
def test_a_changed_source_is_refused(serve: Serve, connect: Connect, run: Run, evidence: Evidence) -> None:
    """A service that comes back with other source MUST be refused at open and in mid-episode."""
    first = serve()
    at_open, mid_episode = connect(first), connect(first)
    session = mid_episode.open(TASK)
    other = replace(first.identity, core="0" * 64)
    edited = edited_subject(run, "gyms/german/verifier.py")
    first.server.stop()
    serve(edited, ports=[first.server.port], secret=first.secret)
    kinds = {
        "connect": fault_of(lambda: connect(first, expected=other))[0],
        "open": fault_of(lambda: at_open.open(TASK))[0],
        "call": fault_of(lambda: session.call("lookup", "{}"))[0],
    }
    evidence.measure(**kinds)
    expected = dict.fromkeys(kinds, Kind.IDENTITY_CHANGED)
    assert kinds == expected, explain(
        subject="a client that agreed with one service and is answered by another on the same port",
        expected=expected,
        got=kinds,
        cause="identity is checked when connecting and taken for granted afterwards",
    )


@check("NEMO-C-06", broken="faults_become_zero_reward")
def test_a_broken_service_is_typed_sticky_and_bounded(
    serve: Serve, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """Every way a service can break MUST give its typed error, at once and from then on, and never a reward."""
    doomed = serve()
    seen: dict[str, tuple[object, ...]] = {}
    started = time.monotonic()
    with FaultProxy(doomed.server.port) as proxy:
        for fault in Fault:
            proxy.fault = Fault.NONE
            gym = connect(doomed, url=proxy.url, deadline_s=SHORT_S)
            session, before = gym.open(TASK), proxy.requests
            proxy.fault = fault
            # The last figure is how often the client sent something: a call is never sent again.
            seen[fault] = (*_kinds(gym, session), proxy.requests - before)
        seen["trickle, event loop"] = asyncio.run(_trickled_on_a_loop(proxy, doomed, orders))
    gyms = [connect(doomed, deadline_s=SHORT_S) for _ in range(3)]
    sessions = [gym.open(TASK) for gym in gyms]
    doomed.server.pause()
    seen["hung"] = _kinds(gyms[0], sessions[0], doomed.server.resume)
    doomed.server.kill()
    seen["killed"] = _kinds(gyms[1], sessions[1])
    serve(ports=[doomed.server.port], secret=doomed.secret)
    seen["restarted"] = _kinds(gyms[2], sessions[2])
    evidence.measure(seconds=time.monotonic() - started, seen=seen)
    assert seen == BROKEN_SERVICES, explain(
        subject="kinds at a call, verify and open under each fault, all within bounds, and how often was sent",
        expected=BROKEN_SERVICES,
        got=seen,
        cause="a fault is retried, forgotten, or turned into an observation or a reward",
    )


@check("NEMO-C-07", broken="retries_count_twice")
def test_a_repeated_delivery_counts_once(
    nemo: Wire, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A call id or a verify that arrives twice MUST give the same answer and MUST count once."""
    with connect().open(TASK) as session:
        call = {"session_id": session.id, "tool": "lookup", "arguments": "{", "call_id": "again"}
        answers = [nemo.bridge("call", **call).json() for _ in range(3)]
        verdicts = [nemo.bridge("verify", session_id=session.id, answer=text).json() for text in ("1", "2", None)]
    replay = orders.replay(TASK, [ToolCall("lookup", "{")], "1")
    seen = (len({json.dumps(answer) for answer in answers}), [verdict["parts"] for verdict in verdicts])
    evidence.attach("answers.json", {"calls": answers, "verdicts": verdicts})
    expected = (1, [dict(replay.verdict.parts)] * 3)
    assert seen == expected, explain(
        subject="different answers to one call id sent three times, and the parts of three verdicts",
        expected=expected,
        got=seen,
        cause="a repeated delivery is executed again",
    )


@check("NEMO-C-08", broken="the_last_session_wins")
def test_sixteen_clients_are_isolated_on_loopback(
    connect: Connect, service: GymService, orders: GermanOrders, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen concurrent clients MUST each get their own episode, on loopback, past any configured proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    tasks = [f"v1/dev/8/{index}" for index in range(16)]
    gyms, everyone_open = [connect() for _ in tasks], Barrier(16)

    def episode(number: int) -> object:
        with gyms[number].open(tasks[number]) as session:
            everyone_open.wait(timeout=60)
            for call in right_path(orders, tasks[number]):
                session.call(call.tool, call.arguments)
            return session.verify(right_answer(orders, tasks[number])).outcome

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda number: fault_of(lambda: episode(number)), range(16)))
    listening = psutil.Process(service.server.pid).net_connections("tcp")
    addresses = {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN}
    evidence.measure(addresses=sorted(addresses))
    assert (set(outcomes), addresses) == ({(None, "solved")}, {"127.0.0.1"}), explain(
        subject="outcomes of sixteen concurrent clients, and addresses the server listens on",
        expected=({(None, "solved")}, {"127.0.0.1"}),
        got=(set(outcomes), addresses),
        cause="clients share a session, cookies or a proxy, or the server is open to the network",
    )


@check("NEMO-C-09", broken="faults_are_forgotten")
def test_sessions_are_closed_and_faults_stick(
    nemo: Wire,
    connect: Connect,
    service: GymService,
    small_service: GymService,
    orders: GermanOrders,
    evidence: Evidence,
) -> None:
    """Every end MUST close its sessions, a fault MUST stick until its owner resets it, a disagreeing replay is one."""
    gym, before = connect(), nemo.state()
    seen = {
        "ends": three_ends(gym, orders, TASK, EXIT_WITHOUT_CLOSING, service.server.url, service.secret),
        "opened, left open": _since(before, nemo.state()),
        **fault_and_reset(gym, TASK, lambda session: nemo.bridge("fault", session_id=session.id)),
        **disagreements(connect, orders, TASK),
        **_capacity_and_close(connect(small_service)),
    }
    evidence.measure(**seen)
    assert seen == LIFE_OF_A_GYM, explain(
        subject="sessions after success, exception and exit; what sticks, what does not, and who clears it",
        expected=LIFE_OF_A_GYM,
        got=seen,
        cause="an end does not close, or a fault is cleared by something else than its owner",
    )


LIFE_OF_A_GYM = {
    "ends": ((None, 1.0), "ValueError", 0),
    "opened, left open": (5, 0),
    "after a fault": ["service_error"] * 3,
    "after a reset": (None, True),
    "disagreeing verdict": ("replay_disagreement", "replay_disagreement"),
    "disagreeing observation": ("replay_disagreement", "replay_disagreement"),
    "over capacity": [None, None, None, "capacity"],
    "after a close": (None, True),
    "closed gym": "unreachable",
}


def _since(before: dict[str, Any], after: dict[str, Any]) -> tuple[int, ...]:
    """Return how many sessions were opened, and how many of them are still open."""
    return tuple(after[count] - before[count] for count in ("opened", "open"))


def _capacity_and_close(gym: BlockingGym) -> dict[str, object]:
    """Open one session too many; return what that and an open after a close give, and one after the gym's own."""
    sessions = [fault_of(lambda: gym.open(TASK)) for _ in range(4)]
    first = sessions[0][1]
    fault_of(lambda: first.close() if first else None)
    after_a_close = fault_of(lambda: gym.open(TASK).call("lookup", "{}").is_error)
    gym.close()
    return {
        "over capacity": [kind for kind, _ in sessions],
        "after a close": after_a_close,
        "closed gym": fault_of(lambda: gym.open(TASK))[0],
    }


BROKEN_SERVICES: dict[str, tuple[object, ...]] = {
    Fault.NONE: (None, None, None, True, 3),
    Fault.CUT: (Kind.UNREACHABLE,) * 3 + (True, 1),
    Fault.RESET: (Kind.UNREACHABLE,) * 3 + (True, 1),
    Fault.STALL: (Kind.TIMEOUT,) * 3 + (True, 1),
    Fault.REFUSE: (Kind.UNREACHABLE,) * 3 + (True, 0),
    Fault.EMPTY: (Kind.PROTOCOL,) * 3 + (True, 0),
    Fault.TRICKLE: (Kind.TIMEOUT,) * 3 + (True, 1),
    "trickle, event loop": (Kind.TIMEOUT,) * 3 + (True,),
    "hung": (Kind.TIMEOUT,) * 3 + (True,),
    "killed": (Kind.UNREACHABLE,) * 3 + (True,),
    "restarted": (Kind.SESSION_LOST,) * 3 + (True,),
}
"""Kinds at a call, verify and open; whether all were within bounds; deliveries where the proxy counts them."""


def _kinds(gym: BlockingGym, session: BlockingSession, heal: Callable[[], None] = lambda: None) -> tuple[object, ...]:
    """Return the kinds at a call, then, with the service healed, at verify and open, and whether it was bounded."""
    started = time.monotonic()
    at_call = fault_of(lambda: session.call("lookup", "{}"))[0]
    heal()
    at_verify = fault_of(lambda: session.verify("1"))[0]
    at_open = fault_of(lambda: gym.open(TASK))[0]
    return at_call, at_verify, at_open, time.monotonic() - started < BOUND_S


async def _trickled_on_a_loop(proxy: FaultProxy, service: GymService, orders: GermanOrders) -> tuple[object, ...]:
    """Return the kinds at a call, after the close of another session at a call and an open, and if it was bounded."""
    proxy.fault, started = Fault.NONE, time.monotonic()
    async with NemoGym(proxy.url, service.secret, orders, deadline_s=SHORT_S) as gym:
        session, other = await gym.open(TASK), await gym.open(TASK)
        proxy.fault = Fault.TRICKLE
        at_call = await async_fault_of(session.call("lookup", "{}"))
        # A close that fails must neither clear a fault nor make one.
        await other.close()
        proxy.fault = Fault.NONE
        later = [await async_fault_of(session.call("lookup", "{}")), await async_fault_of(gym.open(TASK))]
        return at_call, *later, time.monotonic() - started < BOUND_S


async def _play_at_once(service: GymService, orders: GermanOrders, scripts: list[Script]) -> list[Replay]:
    """Play all scripts at the same time, each in its own session of one client."""
    async with NemoGym(service.server.url, service.secret, orders) as gym:
        return await asyncio.gather(*(play_async(gym, TASK, script) for script in scripts))


EXIT_WITHOUT_CLOSING = """
import sys
from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.nemo.client import NemoGym
gym = BlockingGym(NemoGym(sys.argv[1], sys.argv[2], GermanOrders(), blocking=True))
sessions = [gym.open("v1/dev/0/0") for _ in range(3)]
"""
