"""What many sessions leave behind: memory, descriptors, threads and slots, of a server or of the bridge."""

import time
from collections.abc import Callable
from typing import Any

import psutil

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.process.server import Server
from gymqual.harness.stacks.services import GymService
from gymqual.qualification.support.openenv.wire import Socket, observed, outcome, wired
from gymqual.qualification.support.scenarios import right_answer, right_path, wait_for

RESETS = 260
WARM_UP = 20
RSS_GROWTH_BYTES = 32 * 2**20


def held(server: Server) -> tuple[int, int, int]:
    """Return a process's resident bytes, and the least descriptors and threads that it is seen with for a second.

    A socket that was closed at the other end stays a descriptor for a moment.
    """
    seen = []
    for _ in range(20):
        seen.append((server.descriptors(), psutil.Process(server.pid).num_threads()))
        time.sleep(0.05)
    return server.rss_bytes(), min(descriptors for descriptors, _ in seen), min(threads for _, threads in seen)


def growth(service: GymService, work: Callable[[int], list[Any]]) -> dict[str, Any]:
    """Warm up, work, and return what went wrong and what has grown since the warm-up."""
    with wired(service) as wire:
        work(WARM_UP)
        wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
        rss_bytes, descriptors, _ = held(service.server)
        begun = wire.state()["begun"]
        wrong = work(RESETS)
        wait_for(lambda: wire.state()["open"] == 0, limit_s=20)
        state, (rss_bytes_now, descriptors_now, _) = wire.state(), held(service.server)
        return {
            "wrong": wrong[:3],
            "resets": state["begun"] - begun,
            "rss_bytes": rss_bytes_now - rss_bytes,
            "descriptors": descriptors_now - descriptors,
            "open": (state["open"], state["episodes"]),
        }


def within(seen: dict[str, Any]) -> bool:
    nothing_left = (seen["wrong"], seen["descriptors"], seen["open"]) == ([], 0, (0, 0))
    return nothing_left and seen["resets"] == RESETS and seen["rss_bytes"] <= RSS_GROWTH_BYTES


def reset_and_play(session: Socket, number: int, orders: GermanOrders) -> list[Any]:
    """Reset to a task that no earlier reset had, look it up, end every second episode; return what was wrong."""
    task = f"v1/dev/9/{number}"
    begun = session.reset(task)
    state = session.state()
    if begun["type"] != "observation" or outcome(state) != (None, False, None, 0) or state["task_id"] != task:
        return [(task, begun, state)]
    calls = right_path(orders, task)
    seen = [observed(session.call(call))[0] for call in (calls if number % 2 else calls[:1])]
    expected = [shown.text for shown in orders.replay(task, calls, None).observations[: len(seen)]]
    reward = observed(session.verify(right_answer(orders, task)))[2] if number % 2 else None
    return [] if (seen, reward) == (expected, 1.0 if number % 2 else None) else [(task, seen, reward)]
