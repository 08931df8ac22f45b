"""OpenEnv, forced service loss: whatever ends or hangs, a rollout is told so by kind, at once, and for good.

Each check takes a service of its own down. Its control, the same script without the blow, pays 1.0.
"""

import time

import pytest

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.fault_proxy import Fault, FaultProxy
from gymqual.qualification.fixtures.openenv import BridgeTo, Connect, Serve
from gymqual.qualification.support.openenv.losses import DEADLINE_S, TASK, Loss, in_flight, loss_of, solves
from gymqual.qualification.support.openenv.sdk import sdk_client
from gymqual.qualification.support.openenv.wire import wired
from gymqual.qualification.support.scenarios import fault_of, wait_for

pytestmark = [pytest.mark.gym("openenv"), pytest.mark.cpu_smoke]


def lost(kind: str) -> Loss:
    """A rollout that was told one kind, by all that it asked, in time and without a reward."""
    return Loss(kind, kind, kind, None, True)


@check("OPENENV-L-01", broken="an_unplayed_episode_is_zero")
def test_a_server_killed_between_calls_is_unreachable(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A server killed while idle MUST be unreachable at the next call, at verification and after, never a reward."""
    doomed = serve()
    bridge = bridge_to(doomed)
    gyms = [connect(bridge, doomed.secret, deadline_s=DEADLINE_S) for _ in range(2)]
    control = solves(gyms[0], orders)
    sessions = [gym.open(TASK) for gym in gyms]
    doomed.server.kill()
    seen = [control, loss_of(gyms[0], sessions[0]), loss_of(gyms[1], sessions[1], call=False)]
    evidence.measure(seen=seen)
    expected = [1.0, lost("unreachable"), lost("unreachable")._replace(call=None)]
    assert seen == expected, explain(
        subject="control; a call, and a verification without one, after the server was killed",
        expected=expected,
        got=seen,
        cause="a lost verification is paid as zero, or the loss is forgotten",
    )


@check("OPENENV-L-02", broken="faults_are_forgotten")
def test_a_server_killed_under_calls_is_unreachable_to_all(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A server killed with one call, or sixteen, in flight MUST be unreachable to every one of them, for good."""
    seen: dict[int, object] = {}
    for count in (1, 16):
        doomed = serve()
        gym = connect(bridge_to(doomed), doomed.secret, deadline_s=30.0)
        control = solves(gym, orders)
        sessions = [gym.open(TASK) for _ in range(count)]
        with wired(doomed) as wire:
            kinds = in_flight(wire, sessions, doomed.server.kill)
        serve(ports=[doomed.server.port], secret=doomed.secret)
        seen[count] = (control, set(kinds), loss_of(gym, sessions[-1], call=False))
    evidence.measure(seen=str(seen))
    expected = {n: (1.0, {"unreachable"}, lost("unreachable")._replace(call=None)) for n in (1, 16)}
    assert seen == expected, explain(
        subject="control, kinds of 1 and of 16 calls in flight, and what follows once the server is back",
        expected=expected,
        got=seen,
        cause="a fault is raised once and then forgotten",
    )


@check("OPENENV-L-03", broken="late_answers_surface")
def test_a_paused_server_times_out_and_its_late_answer_never_surfaces(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A server paused past the deadline MUST be a bounded time-out that sticks once it goes on."""
    doomed = serve()
    gym = connect(bridge_to(doomed), doomed.secret, deadline_s=DEADLINE_S)
    control = solves(gym, orders)
    session = gym.open(TASK)
    doomed.server.pause()
    started = time.monotonic()
    seen = [control, loss_of(gym, session, heal=doomed.server.resume)]
    took = time.monotonic() - started
    gym.reset_fault()
    late = fault_of(lambda: session.call("calculator", '{"expression":"5*5"}').text)
    gym.reset_fault()
    after = solves(gym, orders)
    evidence.measure(seen=seen, seconds=took, late=late, after=after)
    expected = ([1.0, lost("timeout")], True, ("timeout", None), 1.0)
    assert (seen, took < 5 * DEADLINE_S, late, after) == expected, explain(
        subject="control and a paused server; within five deadlines; the same session and a new one after a reset",
        expected=expected,
        got=(seen, took, late, after),
        cause="upstream's own time-outs bound the call, or a late answer is read as another's",
    )


@check("OPENENV-L-04", broken="the_bridge_reconnects")
def test_a_restarted_server_is_never_taken_for_the_lost_one(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, run: Run, orders: GermanOrders, evidence: Evidence
) -> None:
    """A server restarted on the same port MUST be a lost rollout, where the stock SDK client gets an empty session."""
    doomed = serve()
    bridge = bridge_to(doomed)
    gym = connect(bridge, doomed.secret, deadline_s=DEADLINE_S)
    session = gym.open(TASK)
    with sdk_client(run.stack("openenv"), doomed.server.url, run.folder) as stock:
        stock.ask("reset", task_id=TASK)
        doomed.server.kill()
        again = serve(ports=[doomed.server.port], secret=doomed.secret)
        seen = [loss_of(gym, session)]
        with wired(again) as wire:
            sessions_made = wire.state()["open"]
        # The stock client has lost its episode and is told nothing of it.
        stock_sees = [stock.ask("step", tool="lookup", arguments="{}"), stock.ask("state")["state"]["episode_id"]]
    fresh = solves(connect(bridge, doomed.secret), orders)
    evidence.measure(seen=seen, stock=stock_sees, sessions_made=sessions_made)
    silent = "(code: EXECUTION_ERROR)" in stock_sees[0].get("text", "") and stock_sees[1] is None
    assert (seen, sessions_made, silent, fresh) == ([lost("unreachable")], 0, True, 1.0), explain(
        subject="the rollout's loss; sessions it made on the new server; the stock client's silence; a new client",
        expected=([lost("unreachable")], 0, True, 1.0),
        got=(seen, sessions_made, stock_sees, fresh),
        cause="the SDK reconnected to a session that knows nothing of the episode",
    )


@check("OPENENV-L-05", broken="the_bridge_hides_closes")
def test_a_socket_closed_by_the_server_ends_its_rollout(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A server that closes its sockets politely in mid-episode MUST be a lost rollout like one that crashes."""
    doomed = serve()
    gym = connect(bridge_to(doomed), doomed.secret, deadline_s=DEADLINE_S)
    control = solves(gym, orders)
    session = gym.open(TASK)
    session.call("lookup", "{}")
    # SIGTERM: upstream's server closes every WebSocket with a farewell and ends.
    doomed.server.stop()
    seen = [control, loss_of(gym, session)]
    evidence.measure(seen=seen, exit_code=doomed.server.exit_code)
    assert seen == [1.0, lost("unreachable")], explain(
        subject="control; a rollout whose socket the server closed",
        expected=[1.0, lost("unreachable")],
        got=seen,
        cause="a polite close is taken for the end of the episode",
    )


@check("OPENENV-L-06", broken="a_new_client_inherits_the_fault")
def test_a_service_that_its_owner_starts_anew_works(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """After a loss, a service and a client that their owner starts anew MUST work, old server and bridge or not."""
    doomed = serve()
    bridge = bridge_to(doomed)
    gym = connect(bridge, doomed.secret, deadline_s=DEADLINE_S)
    session = gym.open(TASK)
    doomed.server.kill()
    loss = loss_of(gym, session)
    again = serve(ports=[doomed.server.port], secret=doomed.secret)
    seen = {
        "the old client": solves(gym, orders),
        "a new client of the old bridge": solves(lambda: connect(bridge, doomed.secret), orders),
        "a new bridge": solves(lambda: connect(bridge_to(again), again.secret), orders),
    }
    evidence.measure(seen=seen)
    expected = {"the old client": "unreachable", "a new client of the old bridge": 1.0, "a new bridge": 1.0}
    assert (loss, seen) == (lost("unreachable"), expected), explain(
        subject="the loss, and rollouts once the service was started again",
        expected=(lost("unreachable"), expected),
        got=(loss, seen),
        cause="a fault is kept by process instead of by client, or cleared by a restart",
    )


@check("OPENENV-L-07", broken="a_lost_bridge_is_an_observation")
def test_a_killed_or_paused_bridge_is_as_typed_as_the_server(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A bridge that dies, idle or under calls, MUST be unreachable for good and MUST free the server's slots."""
    service = serve()
    with wired(service) as wire:
        idle, busy, paused = (bridge_to(service) for _ in range(3))
        gyms = [connect(bridge, service.secret, deadline_s=DEADLINE_S) for bridge in (idle, busy, paused)]
        controls = [solves(gym, orders) for gym in gyms]
        sessions = [gym.open(TASK) for gym in gyms]
        idle.kill()
        seen: dict[str, object] = {"idle": loss_of(gyms[0], sessions[0])}
        seen["under a call"] = in_flight(wire, [sessions[1]], busy.kill)
        seen["after it"] = loss_of(gyms[1], sessions[1], call=False)
        paused.pause()
        seen["paused"] = loss_of(gyms[2], sessions[2], heal=paused.resume)
        gyms[2].close()
        seen["slots"] = wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
    evidence.measure(seen=str(seen))
    expected = {
        "idle": lost("unreachable"),
        "under a call": ["unreachable"],
        "after it": lost("unreachable")._replace(call=None),
        "paused": lost("timeout"),
        "slots": True,
    }
    assert (controls, seen) == ([1.0] * 3, expected), explain(
        subject="controls; what rollouts are told of a bridge that was killed or paused; slots freed",
        expected=([1.0] * 3, expected),
        got=(controls, seen),
        cause="the end of the bridge is read as an answer, or leaves the server's sessions open",
    )


@check("OPENENV-L-08", broken="calls_are_sent_again")
def test_a_broken_wire_is_typed_and_nothing_is_sent_again(
    serve: Serve, bridge_to: BridgeTo, connect: Connect, orders: GermanOrders, evidence: Evidence
) -> None:
    """A wire that is cut, reset or stalled MUST be typed for good, and no call MUST ever be delivered twice."""
    service, seen = serve(), {}
    for fault in (Fault.NONE, Fault.CUT, Fault.RESET, Fault.STALL):
        with FaultProxy(service.server.port) as proxy, wired(service) as wire:
            gym = connect(bridge_to(service, url=proxy.url), service.secret, deadline_s=DEADLINE_S)
            session, before = gym.open(TASK), wire.state()["begun"]
            proxy.fault = fault
            loss = loss_of(gym, session, heal=lambda proxy=proxy: setattr(proxy, "fault", Fault.NONE))
            # A client that sends again needs another socket, and with it another request of the handshake.
            seen[fault] = (loss, wire.state()["begun"] - before, proxy.requests)
            gym.close()
    evidence.measure(seen=str(seen))
    expected = {
        Fault.NONE: (Loss(None, None, None, 0.0, True), 1, seen[Fault.NONE][2]),
        Fault.CUT: (lost("unreachable"), 0, seen[Fault.NONE][2] - 1),
        Fault.RESET: (lost("unreachable"), 0, seen[Fault.NONE][2] - 1),
        Fault.STALL: (lost("timeout"), 0, seen[Fault.NONE][2] - 1),
    }
    assert seen == expected, explain(
        subject="(loss, episodes begun after it, handshakes) by fault of the wire; the first is the control",
        expected=expected,
        got=seen,
        cause="a fault is retried on another socket, or turned into an answer",
    )
