"""The OpenEnv server with a switch: one defect at a time, each what a real server got wrong.

Runs in the gym's own stack beside ``app.py``. ``POST /bridge/defect {"name": ...}`` sets the switch.
"""

import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.openenv.launch import forbid_gradio  # noqa: E402

forbid_gradio()

from openenv.core.env_server.http_server import HTTPEnvServer  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402

import gymqual.gyms.broken_core as core  # noqa: E402
from gymqual.gyms.base import InfrastructureError  # noqa: E402
from gymqual.gyms.german.tasks import find_task  # noqa: E402
from gymqual.gyms.openenv import server  # noqa: E402
from gymqual.gyms.openenv.environment import OrdersEnvironment  # noqa: E402
from gymqual.gyms.openenv.middleware import NoMcp  # noqa: E402
from gymqual.gyms.openenv.models import OrdersAction, OrdersObservation, OrdersState, Verification  # noqa: E402
from gymqual.gyms.openenv.server import Handler, OrdersServer, OrdersService, main  # noqa: E402
from gymqual.gyms.served import ServedEpisode  # noqa: E402

LEAK_BYTES = 400_000


class BrokenEnvironment(OrdersEnvironment):
    """An environment under a defect."""

    _late: OrdersObservation | None = None

    @property
    def _defect(self) -> str:
        assert isinstance(self._service, BrokenService)
        return self._service.defect

    def reset(self, seed: Any = None, **fields: Any) -> OrdersObservation:  # type: ignore[override]
        assert isinstance(self._service, BrokenService)
        # resets_leak: the episode before stays referenced, with whatever it held.
        if self._defect == "resets_leak" and self._episode is not None:
            self._service.leaked.append(b"x" * LEAK_BYTES)
        # identity_is_not_compared: whoever asks is served.
        if self._defect == "identity_is_not_compared":
            fields.pop("identity", None)
        observation = super().reset(seed, **fields)
        self._service.latest = self._episode
        # reward_is_zero_from_the_start: a default of 0.0 where there is no reward yet.
        if self._defect == "reward_is_zero_from_the_start":
            observation.reward = 0.0
        return observation

    def step(self, action: OrdersAction, timeout_s: float | None = None, **unknown: Any) -> OrdersObservation:
        assert isinstance(self._service, BrokenService)
        # siblings_share_an_episode: state of the process instead of the session.
        if self._defect == "siblings_share_an_episode":
            self._episode = self._service.latest
        # verdict_follows_last_answer: OpenEnv leaves terminal immutability to the environment.
        if self._defect == "verdict_follows_last_answer" and self._episode and action.verification:
            self._episode.verdict = None
        # steps_hold_all_sessions: one lock around every step of the process.
        if self._defect == "steps_hold_all_sessions":
            with self._service.lock:
                observation = super().step(action)
        else:
            observation = super().step(action)
        # answers_are_late: each step gets the answer to the one before.
        if self._defect == "answers_are_late":
            observation, self._late = self._late or observation, observation
        return observation

    def _verify(self, episode: ServedEpisode, verification: Verification, call_id: str) -> OrdersObservation:
        # anyone_can_verify: the secret is there and not compared.
        if self._defect == "anyone_can_verify":
            verification = verification.model_copy(update={"secret": self._service.secret})
        return super()._verify(episode, verification, call_id)

    @property
    def state(self) -> OrdersState:
        state = super().state
        # state_holds_the_record: OpenEnv #611, ground truth serialised in a state answer.
        if self._defect == "state_holds_the_record" and self._episode is not None:
            state.record = self._episode.task.quantities  # type: ignore[attr-defined]
        return state


class BrokenServer(OrdersServer):
    """Upstream's server under a defect."""

    service: "BrokenService"

    async def _create_session(self) -> tuple[str, Environment]:
        # upstreams_sessions: idle reaper, attachment and close by MCP as upstream has them.
        if self.service.defect == "mcp_reaches_sessions":
            return await HTTPEnvServer._create_session(self)
        # sessions_leak: what a session holds stays referenced when it ends.
        if self.service.defect == "sessions_leak":
            self.service.leaked.append(b"x" * LEAK_BYTES)
        return await super()._create_session()

    async def _destroy_session(self, session_id: str) -> None:
        # lost_clients_keep_their_slot: OpenEnv #1000, slots freed only by the owner.
        if self.service.defect == "lost_clients_keep_their_slot":
            self.service.kept.append(session_id)
            return
        await super()._destroy_session(session_id)
        # traces_are_printed: every end of a session leaves a traceback in the log.
        if self.service.defect == "traces_are_printed":
            try:
                raise RuntimeError("session ended")
            except RuntimeError:
                traceback.print_exc()


class BrokenMcp(NoMcp):
    """The middleware under a defect."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if BrokenService.only.defect == "mcp_reaches_sessions":
            await self._app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class BrokenService(OrdersService):
    """The process under a defect."""

    only: "BrokenService"
    defect = ""

    def __init__(self, capacity: int) -> None:
        BrokenService.only = self
        self.leaked: list[bytes] = []
        self.kept: list[str] = []
        self.latest: ServedEpisode | None = None
        self.by_task: dict[str, ServedEpisode] = {}
        self.lock = threading.Lock()
        super().__init__(capacity)
        self.server.service = self  # type: ignore[attr-defined]

    def new_environment(self) -> OrdersEnvironment:
        return BrokenEnvironment(self)

    def new_episode(self, task_id: str) -> ServedEpisode:
        # unknown_tasks_become_another: a default where the request is wrong.
        try:
            episode = super().new_episode(task_id)
        except InfrastructureError:
            if self.defect != "unknown_tasks_become_another":
                raise
            return ServedEpisode(find_task("v1/dev/0/0"))
        # siblings_share_their_calls: state by task, so that the rollouts of a group work on one episode.
        if self.defect == "siblings_share_their_calls":
            first = self.by_task.setdefault(task_id, episode)
            episode.episode, episode.shown = first.episode, first.shown
        return episode

    def bridge_routes(self) -> dict[str, Handler]:
        return {**super().bridge_routes(), "defect": self._switch}

    def _switch(self, body: dict[str, Any]) -> dict[str, Any]:
        self.defect = core.defect = body["name"]
        self.by_task.clear()
        self.leaked.clear()
        held = self.server._sessions.keys() - self.server._session_websocket_attachments
        for session_id in {*self.kept, *held}:
            environment = self.server._sessions.pop(session_id, None)
            if environment is not None:
                environment.close()
        self.kept.clear()
        return {}

    def _bridge_identity(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = super()._bridge_identity(body)
        # identity_is_a_constant: digests shipped with a release instead of taken from what runs.
        if self.defect == "identity_is_a_constant":
            real = self.identity
            answer["identity"] = replace(real, core="0" * 64, sources=dict.fromkeys(real.sources, "0" * 64)).to_json()
        return answer


server.OrdersServer = BrokenServer  # type: ignore[misc]
server.NoMcp = BrokenMcp  # type: ignore[misc]

if __name__ == "__main__":
    loaded.record(Path(__file__))
    main(BrokenService)
