"""The synchronous face of a gym, for trainers that call tools synchronously, as TRL does.

The contract is asynchronous. A gym whose transport blocks has coroutines that never suspend, so that they
are simply run to their end in the calling thread: no event loop, no second thread, and nothing to be torn
down in the wrong order when the process ends.
"""

import atexit
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gymqual.gyms.base import Gym, GymIdentity, Observation, Session, Verdict

Result = TypeVar("Result")


def run_to_end(call: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never suspends; raises RuntimeError if it does."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    raise RuntimeError("this gym needs an event loop; give it a blocking transport")


class ClosableGym(Gym, Protocol):
    """A gym that owns connections."""

    async def connect(self) -> None:
        """Reach the service and agree on its identity."""
        ...

    async def close(self) -> None:
        """Close every session and connection."""
        ...


class BlockingGym:
    """A gym whose calls block. What is open is closed at the latest when the interpreter exits."""

    def __init__(self, gym: ClosableGym) -> None:
        """Connect; raises InfrastructureError. ``gym`` must have a blocking transport."""
        self._gym = gym
        atexit.register(self.close)
        try:
            run_to_end(gym.connect())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "BlockingGym":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def identity(self) -> GymIdentity:
        """Return what was agreed on; raises InfrastructureError."""
        return self._gym.identity()

    def open(self, task_id: str) -> "BlockingSession":
        """Open a fresh episode; raises InfrastructureError."""
        return BlockingSession(run_to_end(self._gym.open(task_id)))

    def reset_fault(self) -> None:
        """Forget the sticky fault; for the owner of the service alone."""
        self._gym.reset_fault()

    def close(self) -> None:
        """Close every session and the connections. Idempotent, bounded, never raises."""
        atexit.unregister(self.close)
        run_to_end(self._gym.close())


class BlockingSession:
    """One episode whose calls block."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> "BlockingSession":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """Opaque id, never shown to a model."""
        return self._session.id

    def call(self, tool: str, arguments: str) -> Observation:
        """Execute one model call; raises InfrastructureError."""
        return run_to_end(self._session.call(tool, arguments))

    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """End the episode and judge it; raises InfrastructureError."""
        return run_to_end(self._session.verify(answer, truncated))

    def close(self) -> None:
        """Release the session. Idempotent."""
        run_to_end(self._session.close())
