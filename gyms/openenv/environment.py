"""One session: upstream's environment base class around the frozen core.

A model's call is a step and always gives an observation. The step that ends the episode carries the client's
secret; without it, it is refused and the episode goes on. What upstream leaves to an environment is done here:
nothing is stepped after the verdict, which never changes, and an error names no more than its kind.
"""

import secrets
from dataclasses import asdict
from typing import Any, Protocol

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope
from gymqual.gyms.german_orders import as_verdict
from gymqual.gyms.launch import is_secret
from gymqual.gyms.openenv.models import OrdersAction, OrdersObservation, OrdersState, Verification
from gymqual.gyms.openenv.refusals import protocol_fault, refusals
from gymqual.gyms.served import ServedEpisode


class Host(Protocol):
    """What a session needs of the process that it runs in."""

    identity: GymIdentity
    process: str
    """Nonce and pid, as answers name it."""
    secret: str

    def new_episode(self, task_id: str) -> ServedEpisode:
        """Return a fresh episode; raises InfrastructureError for an unknown task."""
        ...

    def register(self, episode_id: object, episode: ServedEpisode) -> str:
        """Put an episode under its id, which must be new; raises InfrastructureError."""
        ...

    def unregister(self, episode_id: str | None) -> None:
        """Forget an episode that has ended. Idempotent."""
        ...


class OrdersEnvironment(Environment[OrdersAction, OrdersObservation, OrdersState]):
    """One WebSocket session: one episode at a time. Upstream gives each its own thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Host) -> None:
        super().__init__()
        self._service = service
        self._episode_id: str | None = None
        self._episode: ServedEpisode | None = None

    def reset(
        self,
        seed: Any = None,
        episode_id: Any = None,
        task_id: Any = None,
        identity: Any = None,
        **unknown: Any,
    ) -> OrdersObservation:
        """Begin an episode of ``task_id``, or else of the training task that ``seed`` names (0 by default).

        Its id is ``episode_id``, at least 128 bits and never seen before, or a fresh one. With ``identity``, the
        digest that was agreed, a server that is another one refuses.
        """
        with refusals():
            if unknown:
                raise protocol_fault(f"reset does not know {', '.join(sorted(map(str, unknown)))}")
            service = self._service
            if identity is not None and identity != service.identity.digest:
                raise InfrastructureError(
                    Kind.IDENTITY_CHANGED, Scope.SERVICE, "this server is not the one that was agreed"
                )
            episode = service.new_episode(_task_id(seed, task_id))
            name = service.register(secrets.token_hex(16) if episode_id is None else episode_id, episode)
            # Only now, so that a refused reset leaves the running episode as it was.
            service.unregister(self._episode_id)
            self._episode_id, self._episode = name, episode
            return OrdersObservation(
                reply_to=name, messages=episode.task.prompt, served_by=f"{service.identity.digest} {service.process}"
            )

    def step(self, action: OrdersAction, timeout_s: float | None = None, **unknown: Any) -> OrdersObservation:
        """Execute one call, or verify; raises Refusal, and after the verdict always for a call."""
        with refusals():
            if self._episode is None:
                raise protocol_fault("no episode has begun; reset first")
            if action.verification is not None:
                if action.tool is not None or action.arguments is not None:
                    raise protocol_fault("a step is either a call or a verification")
                return self._verify(self._episode, action.verification, action.call_id or "")
            if not isinstance(action.tool, str) or not isinstance(action.arguments, str):
                raise protocol_fault("a call needs the texts tool and arguments")
            observation = self._episode.call(action.tool, action.arguments, action.call_id)
            return OrdersObservation(
                text=observation.text, is_error=observation.is_error, reply_to=action.call_id or ""
            )

    def _verify(self, episode: ServedEpisode, verification: Verification, call_id: str) -> OrdersObservation:
        if not is_secret(verification.secret, self._service.secret):
            raise protocol_fault("a verification needs the client's secret")
        if not isinstance(verification.answer, str | None):
            raise protocol_fault("answer must be text or null")
        verdict = as_verdict(episode.verify(verification.answer, verification.truncated))
        return OrdersObservation(
            reply_to=call_id,
            done=verdict.done,
            reward=verdict.reward,
            verdict={**asdict(verdict), "parts": dict(verdict.parts)},
        )

    @property
    def state(self) -> OrdersState:
        """Where the episode is; before the first reset an empty state."""
        if self._episode is None:
            return OrdersState()
        verdict = self._episode.verdict
        return OrdersState(
            episode_id=self._episode_id,
            step_count=len(self._episode.shown),
            task_id=self._episode.task.task_id,
            done=verdict is not None,
            reward=verdict.reward if verdict else None,
            outcome=verdict.outcome if verdict else None,
        )

    def close(self) -> None:
        """End the episode with its session."""
        self._service.unregister(self._episode_id)
        self._episode_id = self._episode = None

    def get_metadata(self) -> EnvironmentMetadata:
        """Describe the environment."""
        return EnvironmentMetadata(
            name="german_orders",
            description="Synthetic German orders with lookup and calculator; a development task, not a benchmark",
            version="1",
        )


def _task_id(seed: Any, task_id: Any) -> str:
    if task_id is not None:
        return task_id if isinstance(task_id, str) else ""
    if seed is None:
        seed = 0
    # Upstream checks seeds on its HTTP route only.
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise protocol_fault("seed must be a whole number of at least 0")
    return f"v1/train/{seed}/0"
