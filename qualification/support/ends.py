"""How sessions end, what sticks to a gym after a fault, and who clears it: the same of every client."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gymqual.gyms.blocking import BlockingGym, BlockingSession
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.scenarios import (
    DisagreeingObservation,
    DisagreeingVerdict,
    fault_of,
    play,
    raise_inside,
)


def three_ends(gym: BlockingGym, orders: GermanOrders, task: str, leave: str, *arguments: str) -> tuple[object, ...]:
    """End sessions by success, by an exception, and by a program that leaves some open; return how each ended."""
    played = fault_of(lambda: play(gym, task, orders.scripts(task)["oracle"]).verdict.reward)
    raised = fault_of(lambda: raise_inside(gym, task))[0]
    left = subprocess.run([sys.executable, "-c", leave, *arguments], cwd=ROOT, timeout=60, check=False).returncode
    return played, raised, left


def fault_and_reset(gym: BlockingGym, task: str, inject: Callable[[BlockingSession], object]) -> dict[str, object]:
    """Let one session meet a service fault; return what it and another meet then, before and after the reset."""
    faulted, healthy = gym.open(task), gym.open(task)
    inject(faulted)
    kinds = [fault_of(lambda s=s: s.call("lookup", "{}"))[0] for s in (faulted, healthy, healthy)]
    gym.reset_fault()
    return {"after a fault": kinds, "after a reset": fault_of(lambda: healthy.call("lookup", "{}").is_error)}


def disagreements(connect: Callable[..., Any], orders: GermanOrders, task: str) -> dict[str, object]:
    """Replay by rules other than the gym's; return the kind that follows, and the next open's."""
    seen: dict[str, object] = {}
    for name, tasks in (("verdict", DisagreeingVerdict()), ("observation", DisagreeingObservation())):
        gym = connect(tasks=tasks)
        kind = fault_of(lambda gym=gym: play(gym, task, orders.scripts(task)["oracle"]))[0]
        seen[f"disagreeing {name}"] = (kind, fault_of(lambda gym=gym: gym.open(task))[0])
    return seen
