"""How a rollout meets the loss of its service: what is told at a call, at its verification, and from then on."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gymqual.gyms.blocking import BlockingGym, BlockingSession
from gymqual.gyms.german_orders import GermanOrders
from gymqual.qualification.support.openenv.wire import Wire
from gymqual.qualification.support.scenarios import fault_of, right_answer, right_path

TASK = "v1/dev/0/0"
DEADLINE_S = 2.5
"""Deadline of clients that will meet a loss, seconds."""
BOUND_S = 10 * DEADLINE_S + 15
"""What a faulted episode may take on a busy machine; a hang takes for ever."""
CALL = ("calculator", '{"expression":"3*4"}')


class Loss(NamedTuple):
    """What a rollout was told."""

    call: str | None
    verify: str | None
    opening: str | None
    """Kind at the opening of the next rollout of this client."""
    reward: float | None
    bounded: bool


def loss_of(
    gym: BlockingGym, session: BlockingSession, heal: Callable[[], object] = lambda: None, call: bool = True
) -> Loss:
    """Call, heal the service, verify and open; every answer but the first comes from a service that is well."""
    started = time.monotonic()
    at_call = fault_of(lambda: session.call(*CALL))[0] if call else None
    heal()
    at_verify, verdict = fault_of(lambda: session.verify("12"))
    at_open = fault_of(lambda: gym.open(TASK))[0]
    bounded = time.monotonic() - started < BOUND_S
    return Loss(at_call, at_verify, at_open, verdict.reward if verdict else None, bounded)


def in_flight(wire: Wire, sessions: list[BlockingSession], strike: Callable[[], object]) -> list[str | None]:
    """Let every session be in the middle of a call when the blow falls; return the kinds that the calls end with."""
    for session in sessions:
        wire.bridge("inject", episode_id=session.id, delay_s=5.0)
    with ThreadPoolExecutor(len(sessions)) as pool:
        calls = [pool.submit(fault_of, lambda s=s: s.call(*CALL)) for s in sessions]
        # So that all of them have arrived.
        time.sleep(0.7)
        strike()
        return [call.result(timeout=BOUND_S)[0] for call in calls]


def solves(gym: BlockingGym | Callable[[], BlockingGym], orders: GermanOrders) -> float | str | None:
    """Play the right path in a new rollout; return its reward, or the kind of failure, of connecting too."""

    def episode() -> float | None:
        connected = gym if isinstance(gym, BlockingGym) else gym()
        with connected.open(TASK) as session:
            for call in right_path(orders, TASK):
                session.call(call.tool, call.arguments)
            return session.verify(right_answer(orders, TASK)).reward

    kind, reward = fault_of(episode)
    return kind or reward
