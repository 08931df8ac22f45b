"""OpenEnv, bridge and client: what the trainer's own client makes of a real OpenEnv server.

The client under test is the one that training uses; the SDK lives in the bridge, a process of its own.
"""

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import psutil
import pytest

from gymqual.gyms.base import Kind, Script, Verdict
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import Server
from gymqual.harness.records.files import ROOT
from gymqual.harness.stacks.services import GymService, greet_bridge
from gymqual.qualification.fixtures.openenv import BridgeTo, Connect, Serve
from gymqual.qualification.support.ends import disagreements, fault_and_reset, three_ends
from gymqual.qualification.support.openenv.endurance import RSS_GROWTH_BYTES, WARM_UP, held
from gymqual.qualification.support.openenv.strangers import NO_FRAMES, another_product, ends
from gymqual.qualification.support.openenv.wire import Wire, wired
from gymqual.qualification.support.scenarios import (
    HOSTILE_CALLS,
    MALFORMED_CALLS,
    fault_of,
    play,
    play_async,
    right_answer,
    right_path,
    told,
    wait_for,
)
from gymqual.qualification.support.subjects import edited_subject
from gymqual.trainer.grpo.environment import environment_class

pytestmark = [pytest.mark.gym("openenv"), pytest.mark.cpu_smoke]

TASK = "v1/dev/0/0"
ROLLOUTS = 260


@check("OPENENV-C-01", broken="the_bridge_loads_torch")
def test_sdk_and_trainer_live_in_processes_of_their_own(
    bridge: Server, service: GymService, run: Run, evidence: Evidence
) -> None:
    """The SDK MUST run in its own stack's interpreter, with no torch and no foreign variable, never in the trainer."""
    child = psutil.Process(bridge.pid)
    foreign = [
        name for name in child.environ() if name.startswith(("CUDA", "HF_TOKEN", "WANDB", "VIRTUAL_ENV", "http"))
    ]
    loaded = greet_bridge(bridge, service.secret)["loaded"]
    trainer = subprocess.run(
        [sys.executable, "-c", TRAINER_MODULES], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    seen = {
        "processes": len({bridge.pid, service.server.pid, psutil.Process().pid}),
        "interpreter": child.cmdline()[0],
        "foreign variables": foreign,
        "loaded by the bridge": [name for name, is_loaded in loaded.items() if is_loaded],
        "of the SDK in the trainer": trainer.stdout.split(),
    }
    evidence.measure(**seen, trainer_python=sys.version.split()[0], bridge_python=run.stack("openenv").version)
    expected = {
        "processes": 3,
        "interpreter": run.stack("openenv").python,
        "foreign variables": [],
        "loaded by the bridge": [],
        "of the SDK in the trainer": [],
    }
    assert seen == expected, explain(
        subject="processes of server, bridge and trainer, and what they load",
        expected=expected,
        got=seen,
        cause="one of them imports what belongs to the other, and with it its versions",
    )


@check("OPENENV-C-02", broken="rollouts_leave_their_socket")
def test_a_rollout_is_one_websocket_from_reset_to_close(
    wire: Wire, connect: Connect, bridge: Server, orders: GermanOrders, evidence: Evidence
) -> None:
    """Every rollout MUST hold exactly one WebSocket and one episode, from its opening to its close."""
    gym, before = connect(), wire.state()
    sessions = [gym.open(TASK) for _ in range(16)]
    counted = []
    for calls in ((), right_path(orders, TASK)):
        for session in sessions:
            for call in calls:
                session.call(call.tool, call.arguments)
        state = wire.state()
        counted.append((state["open"] - before["open"], state["begun"] - before["begun"], _sockets(bridge, wire)))
    for session in sessions:
        session.close()
    emptied = wait_for(lambda: (wire.state()["open"], _sockets(bridge, wire)) == (before["open"], 0), limit_s=15)
    evidence.measure(counted=counted, emptied=emptied)
    assert (counted, emptied) == ([(16, 16, 16)] * 2, True), explain(
        subject="sessions, episodes and sockets of 16 rollouts, before and after their calls; none left at the end",
        expected=([(16, 16, 16)] * 2, True),
        got=(counted, emptied),
        cause="rollouts share a socket, reconnect, or keep theirs when they are over",
    )


@check("OPENENV-C-03", broken="replies_are_not_paired")
def test_every_answer_belongs_to_its_call(
    wire: Wire,
    serve: Serve,
    bridge_to: BridgeTo,
    bridge: Server,
    connect: Connect,
    orders: GermanOrders,
    evidence: Evidence,
) -> None:
    """An answer to another call MUST be refused, a late one MUST never surface, and concurrent calls keep theirs."""
    liar = serve(broken=True)
    with wired(liar) as other:
        other.bridge("defect", name="answers_are_late")
    reordered = connect(bridge_to(liar), liar.secret)
    told_lies = reordered.open(TASK)
    seen: dict[str, list[Any]] = {
        "reordered": [fault_of(lambda e=e: told_lies.call("calculator", _times(e)).text) for e in (2, 3)]
    }
    slow = connect(deadline_s=1.5)
    session = slow.open(TASK)
    wire.bridge("inject", episode_id=session.id, delay_s=3.0)
    seen["slow"] = [fault_of(lambda e=e: session.call("calculator", _times(e)).text) for e in (4, 5)]
    slow.reset_fault()
    seen["late"] = [fault_of(lambda: session.call("calculator", _times(6)).text)]
    slow.reset_fault()
    seen["a new rollout"] = [fault_of(lambda: slow.open(TASK).call("calculator", _times(7)).text)]
    seen["at once"] = asyncio.run(_concurrent_calls(bridge, wire.service, orders))
    evidence.measure(seen=seen)
    expected = {
        "reordered": [(None, "6"), ("protocol", None)],
        "slow": [("timeout", None)] * 2,
        "late": [("timeout", None)],
        "a new rollout": [(None, "21")],
        "at once": [str(3 * number) for number in range(16)],
    }
    assert seen == expected, explain(
        subject="(kind, text) of calls to a server that answers one call late, of slow calls, and of 16 at once",
        expected=expected,
        got=seen,
        cause="whatever arrives next is taken for the answer",
    )


@check("OPENENV-C-04", broken="capacity_sticks")
def test_capacity_and_malformed_calls_are_told_apart(
    connect: Connect, small_service: GymService, bridge_to: BridgeTo, orders: GermanOrders, evidence: Evidence
) -> None:
    """A full server MUST be a typed refusal that does not stick; a malformed call MUST be an error observation."""
    with wired(small_service) as wire:
        wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
    gym = connect(bridge_to(small_service), small_service.secret)
    first, others = gym.open(TASK), [fault_of(lambda: gym.open(TASK))[0] for _ in range(4)]
    malformed = {fault_of(lambda c=c: first.call(c.tool, c.arguments).is_error) for c in MALFORMED_CALLS}
    for call in right_path(orders, TASK):
        fault_of(lambda call=call: first.call(call.tool, call.arguments))
    reward = fault_of(lambda: first.verify(right_answer(orders, TASK)).reward)
    first.close()
    again = fault_of(lambda: gym.open(TASK).call("lookup", "{}").is_error)
    seen = {"open": others, "malformed": malformed, "reward": reward, "after a close": again}
    evidence.measure(open=seen["open"], malformed_calls=len(MALFORMED_CALLS))
    expected = {
        "open": [None, None, "capacity", "capacity"],
        "malformed": {(None, True)},
        "reward": (None, 1.0),
        "after a close": (None, True),
    }
    assert seen == expected, explain(
        subject="four more sessions of a server with room for three, malformed calls, and what follows",
        expected=expected,
        got=seen,
        cause="a refusal becomes an observation, or ends a run that only had to wait",
    )


@check("OPENENV-C-05", broken="verification_is_public")
def test_trl_sees_reset_lookup_and_calculator(
    wire: Wire, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """Of an environment TRL MUST see reset and the task's tools with their schemas, and nothing else."""
    environment = environment_class(connect(), orders)
    slot = environment()
    # As TRL lists them: public plain functions of the class.
    public = [name for name, _ in inspect.getmembers(environment, inspect.isfunction) if not name.startswith("_")]
    described = {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in orders.tools}
    signatures = {name: sorted(inspect.signature(getattr(slot, name)).parameters) for name in described}
    slot.reset(task_id=TASK, prompt=orders.prompt(TASK), extra="column")
    texts = [getattr(slot, call.tool)(**json.loads(call.arguments)) for call in right_path(orders, TASK)]
    reward = slot._verify(right_answer(orders, TASK)).reward
    slot.reset(task_id=TASK)
    wire.bridge("inject", episode_id=slot._session.id if slot._session else "", fail=True)
    # What a tool raises, TRL shows to the model; the fault must still be there when it is asked for.
    swallowed = fault_of(lambda: slot.lookup(record_id="x"))[0]  # type: ignore[attr-defined]
    sticky = [fault_of(lambda: slot._verify("1"))[0], fault_of(lambda: slot.reset(task_id=TASK))[0]]
    seen = (sorted(public), signatures, len(texts), reward, swallowed, sticky)
    evidence.measure(public=public, signatures=signatures)
    expected = (["calculator", "lookup", "reset"], described, 2, 1.0, "service_error", ["service_error"] * 2)
    assert seen == expected, explain(
        subject="public functions, their parameters, an episode's reward, and a fault that TRL swallowed",
        expected=expected,
        got=seen,
        cause="a public helper becomes a tool of the model, or a swallowed fault is forgotten",
    )


@check("OPENENV-C-06", broken="the_bridge_leaks")
def test_260_rollouts_leave_nothing_behind(
    wire: Wire, connect: Connect, bridge: Server, orders: GermanOrders, evidence: Evidence
) -> None:
    """260 rollouts MUST leave no memory, descriptor, thread or session behind in bridge and server."""
    gym, scripts = connect(), list(orders.scripts(TASK).values())

    def rollouts(count: int) -> list[Any]:
        return [play(gym, TASK, scripts[number % len(scripts)]).verdict.outcome for number in range(count)]

    rollouts(WARM_UP)
    wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
    before = [held(server) for server in (bridge, wire.service.server)]
    outcomes = rollouts(ROLLOUTS)
    wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
    after = [held(server) for server in (bridge, wire.service.server)]
    grown = [tuple(b - a for a, b in zip(x, y, strict=True)) for x, y in zip(before, after, strict=True)]
    expected = [orders.replay(TASK, s.calls, s.answer).verdict.outcome for s in scripts]
    right = outcomes == [expected[number % len(scripts)] for number in range(ROLLOUTS)]
    evidence.measure(grown=grown, open=wire.state()["open"])
    kept = [rss <= RSS_GROWTH_BYTES and max(descriptors, threads) <= 0 for rss, descriptors, threads in grown]
    assert (right, kept, wire.state()["open"]) == (True, [True, True], 0), explain(
        subject="outcomes right; (bytes, descriptors, threads) grown in bridge and server; sessions open",
        expected=(True, f"at most {RSS_GROWTH_BYTES} bytes and nothing else", 0),
        got=(right, grown, wire.state()["open"]),
        cause="what a rollout holds is not freed with it",
    )


@check("OPENENV-C-07", broken="reward_is_shaped_by_the_client")
def test_the_clients_verdict_is_the_native_one(
    wire: Wire, connect: Connect, bridge: Server, orders: GermanOrders, evidence: Evidence
) -> None:
    """The client's verdict, blocking or on an event loop, MUST be the one in the server's own frame."""
    scripts, gym = list(orders.scripts(TASK).values()), connect()
    frames = [wire.begin(TASK).play(script)[-1]["data"]["observation"]["verdict"] for script in scripts]
    native = [(v["reward"], v["strict"], v["outcome"], v["parts"]) for v in frames]
    seen: dict[str, list[object]] = {
        "blocking": [told(play(gym, TASK, script).verdict) for script in scripts],
        "event loop": [told(verdict) for verdict in asyncio.run(_verdicts(bridge, wire.service, orders, scripts))],
    }
    evidence.attach("verdicts.json", {**seen, "native": native})
    assert seen == {"blocking": native, "event loop": native}, explain(
        subject="verdicts of all scripts through the client and in the server's frames",
        expected=native,
        got=seen,
        cause="bridge or client computes, rounds or shapes what it should pass on",
    )


@check("OPENENV-C-08", broken="the_last_session_wins")
def test_sixteen_clients_are_isolated_on_loopback(
    connect: Connect,
    service: GymService,
    bridge: Server,
    orders: GermanOrders,
    evidence: Evidence,
    monkeypatch: pytest.MonkeyPatch,
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
    listening = [c for s in (bridge, service.server) for c in psutil.Process(s.pid).net_connections("tcp")]
    addresses = {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN}
    evidence.measure(addresses=sorted(addresses))
    assert (set(outcomes), addresses) == ({(None, "solved")}, {"127.0.0.1"}), explain(
        subject="outcomes of sixteen concurrent clients, and addresses that bridge and server listen on",
        expected=({(None, "solved")}, {"127.0.0.1"}),
        got=(set(outcomes), addresses),
        cause="rollouts share a session or a proxy, or a process is open to the network",
    )


@check("OPENENV-C-09", broken="the_id_is_shown")
def test_the_model_sees_nothing_of_the_machinery(
    connect: Connect, service: GymService, bridge: Server, orders: GermanOrders, evidence: Evidence
) -> None:
    """Session id, secret, URL, nonce and digests MUST NOT occur in anything a model could see; ids are all fresh."""
    gym = connect()
    ids, visible = [], [json.dumps([orders.prompt(TASK), orders.tools], ensure_ascii=False)]
    for calls in (HOSTILE_CALLS, *(script.calls for script in orders.scripts(TASK).values())):
        with gym.open(TASK) as session:
            ids.append(session.id)
            visible += [session.call(call.tool, call.arguments).text for call in calls]
    identity = gym.identity()
    machinery = [service.secret, service.server.url, service.process["nonce"], str(bridge.port)]
    hidden = [*ids, *machinery, identity.core, identity.digest]
    shown = [part for part in hidden if any(part in text for text in visible)]
    fresh = (len(set(ids)), min(map(len, ids)))
    evidence.attach("visible.json", visible)
    evidence.measure(texts=len(visible), hidden=len(hidden))
    assert (shown, fresh) == ([], (len(ids), 32)), explain(
        subject="prompt, schemas and observations of all scripts and hostile calls; distinct ids and their hex digits",
        expected=("nothing of ids, secret, URL, nonce, port or digests", (len(ids), 32)),
        got=(shown, fresh),
        cause="an error text or an observation carries what only client and server may know",
    )


@check("OPENENV-C-10", broken="any_server_will_do")
def test_what_is_not_the_service_is_refused_by_name(
    service: GymService, bridge: Server, bridge_to: BridgeTo, connect: Connect, run: Run, evidence: Evidence
) -> None:
    """Nothing, another product or version, a wrong secret or no bridge on the port MUST be typed, without a hang."""
    other_version = edited_subject(run, "gyms/base.py")
    with another_product() as url:
        cases: dict[str, Callable[[], object]] = {
            "nothing": lambda: connect(bridge_to(service, url="http://127.0.0.1:9")),
            "another product": lambda: connect(bridge_to(service, url=url)),
            "another version": lambda: connect(bridge_to(service, subject=other_version)),
            "a wrong secret": lambda: connect(secret="0" * 64),
            "no bridge": lambda: connect(service.server),
            "another identity": lambda: connect(expected=replace(connect().identity(), core="0" * 64)),
        }
        seen = {name: fault_of(attempt)[0] for name, attempt in cases.items()}
    seen |= {name: ends(bridge, sent) for name, sent in NO_FRAMES.items()}
    seen["the bridge after that"] = fault_of(lambda: connect().open(TASK).call("lookup", "{}").is_error)[0]
    evidence.measure(**seen)
    expected = {
        "nothing": Kind.UNREACHABLE,
        "another product": Kind.PROTOCOL,
        "another version": Kind.IDENTITY_CHANGED,
        "a wrong secret": Kind.PROTOCOL,
        "no bridge": Kind.PROTOCOL,
        "another identity": Kind.IDENTITY_CHANGED,
        **dict.fromkeys(NO_FRAMES, True),
        "the bridge after that": None,
    }
    assert seen == expected, explain(
        subject="kinds of what is not the agreed service; connections that a bridge ends over what is no frame",
        expected=expected,
        got=seen,
        cause="whatever answers is taken for the service",
    )


@check("OPENENV-C-11", broken="identity_is_checked_once")
def test_a_changed_or_restarted_service_is_refused(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, run: Run, evidence: Evidence
) -> None:
    """A service that comes back as another process, or with other source, MUST be refused when a rollout opens."""
    first = serve()
    bridge = bridge_to(first)
    restarted, changed = connect(bridge, first.secret), connect(bridge, first.secret)
    first.server.stop()
    second = serve(ports=[first.server.port], secret=first.secret)
    seen = {"restarted": fault_of(lambda: restarted.open(TASK).id)[0]}
    second.server.stop()
    serve(edited_subject(run, "gyms/german/verifier.py"), ports=[first.server.port], secret=first.secret)
    seen["changed"] = fault_of(lambda: changed.open(TASK).id)[0]
    evidence.measure(**seen)
    expected = {"restarted": Kind.SESSION_LOST, "changed": Kind.IDENTITY_CHANGED}
    assert seen == expected, explain(
        subject="opening a rollout on a port where the service was restarted, or came back with other source",
        expected=expected,
        got=seen,
        cause="identity is checked when connecting and taken for granted afterwards",
    )


@check("OPENENV-C-12", broken="faults_are_forgotten")
def test_sessions_are_closed_and_faults_stick(
    wire: Wire, connect: Connect, bridge: Server, orders: GermanOrders, evidence: Evidence
) -> None:
    """Every end MUST close its session, a fault MUST stick until its owner resets it, a disagreeing replay is one."""
    gym, before = connect(), wire.state()["open"]
    seen = {
        "ends": three_ends(gym, orders, TASK, EXIT_WITHOUT_CLOSING, str(bridge.port), wire.service.secret),
        "left open": wait_for(lambda: wire.state()["open"] == before, limit_s=15),
        **fault_and_reset(gym, TASK, lambda session: wire.bridge("inject", episode_id=session.id, fail=True)),
        **disagreements(connect, orders, TASK),
    }
    gym.close()
    seen["closed gym"] = fault_of(lambda: gym.open(TASK))[0]
    evidence.measure(**seen)
    expected = {
        "ends": ((None, 1.0), "ValueError", 0),
        "left open": True,
        "after a fault": ["service_error"] * 3,
        "after a reset": (None, True),
        "disagreeing verdict": ("replay_disagreement", "replay_disagreement"),
        "disagreeing observation": ("replay_disagreement", "replay_disagreement"),
        "closed gym": "unreachable",
    }
    assert seen == expected, explain(
        subject="sessions after success, exception and exit; what sticks and who clears it",
        expected=expected,
        got=seen,
        cause="an end does not close, or a fault is cleared by something else than its owner",
    )


TRAINER_MODULES = """
import sys
import gymqual.gyms.openenv.client, gymqual.trainer.grpo.environment
from importlib.util import find_spec
print(*[name for name in ("openenv", "fastmcp", "gradio") if name in sys.modules or find_spec(name)])
"""

EXIT_WITHOUT_CLOSING = """
import sys
from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.openenv.client import OpenEnvGym
gym = BlockingGym(OpenEnvGym(int(sys.argv[1]), sys.argv[2], GermanOrders(), blocking=True))
sessions = [gym.open("v1/dev/0/0") for _ in range(3)]
"""


def _times(number: int) -> str:
    return json.dumps({"expression": f"3*{number}"})


async def _concurrent_calls(bridge: Server, service: GymService, orders: GermanOrders) -> list[str]:
    """Make sixteen calls of one session at once; return their texts in the order they were made."""
    async with OpenEnvGym(bridge.port, service.secret, orders) as gym:
        session = await gym.open(TASK)
        made = await asyncio.gather(*(session.call("calculator", _times(number)) for number in range(16)))
        return [observation.text for observation in made]


async def _verdicts(bridge: Server, service: GymService, orders: GermanOrders, scripts: list[Script]) -> list[Verdict]:
    """Play all scripts on an event loop; return the verdicts."""
    async with OpenEnvGym(bridge.port, service.secret, orders) as gym:
        return [(await play_async(gym, TASK, script)).verdict for script in scripts]


def _sockets(bridge: Server, wire: Wire) -> int:
    """Return how many connections the bridge holds to the server."""
    port = wire.service.server.port
    connections = psutil.Process(bridge.pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and bool(c.raddr) and c.raddr[1] == port for c in connections)
