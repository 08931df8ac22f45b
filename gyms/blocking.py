"""The synchronous face of a gym, for trainers that are not asynchronous (TRL calls tools synchronously).

All calls run on one event loop in a thread of its own, so that sessions of one batch share connections.
Everything that is open is closed when the process ends, in whatever order its modules are torn down.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gyms.base import Gym, GymIdentity, Observation, Session, Verdict

Result = TypeVar("Result")


class ClosableGym(Gym, Protocol):
    """A gym that owns connections."""

    async def connect(self) -> None:
        """Reach the service and agree on its identity."""
        ...

    async def close(self) -> None:
        """Close every session and connection."""
        ...


class BlockingGym:
    """A gym whose calls block. Thread-safe: any thread may call."""

    def __init__(self, gym: ClosableGym) -> None:
        self._gym = gym
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gym", daemon=True)
        self._thread.start()
        self._closed = False
        atexit.register(self.close)
        try:
            self.wait_for(gym.connect())
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
        return BlockingSession(self, self.wait_for(self._gym.open(task_id)))

    def reset_fault(self) -> None:
        """Forget the sticky fault; for the owner of the service alone."""
        self._gym.reset_fault()

    def close(self) -> None:
        """Close every session, the connections and the loop. Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self.wait_for(self._gym.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
            self._loop.close()

    def wait_for(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of this gym to its end; the gym's own deadlines bound it."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class BlockingSession:
    """One episode whose calls block."""

    def __init__(self, gym: BlockingGym, session: Session) -> None:
        self._gym = gym
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
        return self._gym.wait_for(self._session.call(tool, arguments))

    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """End the episode and judge it; raises InfrastructureError."""
        return self._gym.wait_for(self._session.verify(answer, truncated))

    def close(self) -> None:
        """Release the session. Idempotent."""
        self._gym.wait_for(self._session.close())
