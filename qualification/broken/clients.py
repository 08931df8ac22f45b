"""Defects of a gym's client: each a small patch, each what a real bridge got wrong."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from gyms import client
from gyms.base import InfrastructureError, Observation, Verdict
from gyms.client import ClientGym, ClientSession
from gyms.nemo.client import NemoGym

_call, _verify, _open = ClientSession.call, ClientSession.verify, ClientGym.open


def ids_are_a_counter(patch: pytest.MonkeyPatch) -> None:
    """Session ids count upwards, so that one rollout can name another's."""
    numbers = count(time.time_ns())
    patch.setattr(client.secrets, "token_hex", lambda size: f"{next(numbers):032x}")


def the_id_is_shown(patch: pytest.MonkeyPatch) -> None:
    """An error text carries the session id for the log, and with it into the context of the model."""

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        seen = await _call(self, tool, arguments)
        return replace(seen, text=f"{seen.text} (session {self.id})") if seen.is_error else seen

    patch.setattr(ClientSession, "call", call)


def reward_is_shaped_by_the_client(patch: pytest.MonkeyPatch) -> None:
    """The client adds half a point for a lookup, and reports that as the gym's reward."""

    async def verify(self: ClientSession, answer: str | None, truncated: bool = False) -> Verdict:
        verdict = await _verify(self, answer, truncated)
        return replace(verdict, reward=max(verdict.reward or 0.0, 0.5 * verdict.parts["lookup"]))

    patch.setattr(ClientSession, "verify", verify)


def malformed_calls_raise(patch: pytest.MonkeyPatch) -> None:
    """The client decodes arguments before it sends them: verifiers #1763, bad JSON killed the rollout."""

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        return await _call(self, tool, json.dumps(json.loads(arguments)))

    patch.setattr(ClientSession, "call", call)


def identity_is_checked_once(patch: pytest.MonkeyPatch) -> None:
    """Identity is agreed when connecting and taken for granted afterwards."""
    patch.setattr(NemoGym, "_check_identity", lambda self, agreed, headers: None)


def faults_become_zero_reward(patch: pytest.MonkeyPatch) -> None:
    """NeMo Gym #2552: a failed rollout enters the group as reward 0."""

    async def verify(self: ClientSession, answer: str | None, truncated: bool = False) -> Verdict:
        try:
            return await _verify(self, answer, truncated)
        except InfrastructureError:
            return Verdict(reward=0.0, strict=False, parts={}, outcome="error")

    patch.setattr(ClientSession, "verify", verify)


def the_last_session_wins(patch: pytest.MonkeyPatch) -> None:
    """Calls go to the session opened last: state of the module instead of the rollout."""
    latest: list[str] = []

    async def opening(self: ClientGym, task_id: str) -> ClientSession:
        session = await _open(self, task_id)
        latest[:] = [session.id]
        return session

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        self._session_id = latest[0]
        return await _call(self, tool, arguments)

    patch.setattr(ClientGym, "open", opening)
    patch.setattr(ClientSession, "call", call)


def faults_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A fault is raised once and then forgotten, so that the next rollout looks healthy."""
    patch.setattr(ClientGym, "raise_fault", lambda self: None)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        ids_are_a_counter,
        the_id_is_shown,
        reward_is_shaped_by_the_client,
        malformed_calls_raise,
        identity_is_checked_once,
        faults_become_zero_reward,
        the_last_session_wins,
        faults_are_forgotten,
    )
}
