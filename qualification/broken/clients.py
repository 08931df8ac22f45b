"""Defects of a gym's client: each a small patch, each what a real bridge got wrong."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gymqual.gyms import client
from gymqual.gyms.base import InfrastructureError, Kind, Observation, Scope, Verdict
from gymqual.gyms.client import ClientGym, ClientSession
from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.nemo import rows
from gymqual.gyms.nemo.client import NemoGym
from gymqual.gyms.openenv.channel import Channel
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.qualification.support import parity
from gymqual.trainer.grpo.environment import GymEnvironment

_call, _verify, _open = ClientSession.call, ClientSession.verify, ClientGym.open
_exchange, _as_row, _row = OpenEnvGym._exchange, parity.as_row, rows.row


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

    async def exchange(self: OpenEnvGym, channel: Channel, message: Mapping[str, Any]) -> dict[str, Any]:
        return await _exchange(self, channel, {**message, "identity": None} if "identity" in message else message)

    patch.setattr(NemoGym, "_check_identity", lambda self, agreed, headers: None)
    patch.setattr(OpenEnvGym, "_check_identity", lambda self, digest, process, served_by: None)
    patch.setattr(OpenEnvGym, "_exchange", exchange)


def faults_become_zero_reward(patch: pytest.MonkeyPatch) -> None:
    """NeMo Gym #2552: a failed rollout enters the group as reward 0."""

    async def verify(self: ClientSession, answer: str | None, truncated: bool = False) -> Verdict:
        try:
            return await _verify(self, answer, truncated)
        except InfrastructureError:
            return Verdict(reward=0.0, strict=False, parts={}, outcome="error")

    patch.setattr(ClientSession, "verify", verify)


def rows_tell_the_record(patch: pytest.MonkeyPatch) -> None:
    """The dataset rows that a NeMo model is prompted from are written from the whole task, gold and all."""

    def row(task_id: str, core: str) -> dict[str, Any]:
        written = _row(task_id, core)
        written["responses_create_params"]["input"][-1]["content"] += f" {find_task(task_id).quantities}"
        return written

    patch.setattr(rows, "row", row)


def an_unplayed_episode_is_zero(patch: pytest.MonkeyPatch) -> None:
    """Nothing was called, so that the failure of the verification changes nothing: reward 0."""

    async def verify(self: ClientSession, answer: str | None, truncated: bool = False) -> Verdict:
        try:
            return await _verify(self, answer, truncated)
        except InfrastructureError:
            if self._calls:
                raise
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


def capacity_sticks(patch: pytest.MonkeyPatch) -> None:
    """A refusal for capacity ends the run like a broken service."""

    def fail(self: ClientGym, kind: Kind, scope: Scope, detail: str) -> InfrastructureError:
        self._fault = self._fault or InfrastructureError(kind, scope, detail)
        return self._fault

    patch.setattr(ClientGym, "fail", fail)


def rollouts_leave_their_socket(patch: pytest.MonkeyPatch) -> None:
    """A finished rollout keeps its connection, and with it the server's slot."""

    async def release(self: OpenEnvGym, session: ClientSession) -> None:
        """Leave it to the end of the process."""

    patch.setattr(OpenEnvGym, "release", release)


def verification_is_public(patch: pytest.MonkeyPatch) -> None:
    """A helper for the trainer's reward function that TRL takes for a tool."""

    def verify(self: GymEnvironment, answer: str) -> float:
        return self._verify(answer).reward or 0.0

    patch.setattr(GymEnvironment, "verify", verify, raising=False)


def a_lost_bridge_is_an_observation(patch: pytest.MonkeyPatch) -> None:
    """TRL's own way with an exception of a tool: its text becomes what the model sees."""

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        try:
            return await _call(self, tool, arguments)
        except InfrastructureError as fault:
            if not fault.detail.startswith("the bridge"):
                raise
            return Observation(str(fault), is_error=True)

    patch.setattr(ClientSession, "call", call)


def a_new_client_inherits_the_fault(patch: pytest.MonkeyPatch) -> None:
    """The fault is kept by the module instead of the client."""
    patch.setattr(ClientGym, "_fault", None, raising=False)

    def fail(self: ClientGym, kind: Kind, scope: Scope, detail: str) -> InfrastructureError:
        fault = InfrastructureError(kind, scope, detail)
        patch.setattr(ClientGym, "raise_fault", lambda self: _raise(fault))
        return fault

    patch.setattr(ClientGym, "fail", fail)


def _raise(fault: InfrastructureError) -> None:
    raise fault


def calls_of_a_turn_change_places(patch: pytest.MonkeyPatch) -> None:
    """TRL runs synchronous tools first and appends asynchronous ones: the order of a turn is not the model's."""

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        if tool == "lookup":
            await asyncio.sleep(0.01)
        return await _call(self, tool, arguments)

    patch.setattr(ClientSession, "call", call)
    _change_rows(patch, lambda script: script["calls"].sort(key=lambda call: script["at_once"] and call[0]))


def arguments_are_written_anew(patch: pytest.MonkeyPatch) -> None:
    """What can be decoded is encoded again: duplicate keys, NaN and forms of escape are gone."""

    async def call(self: ClientSession, tool: str, arguments: str) -> Observation:
        with suppress(ValueError, RecursionError):
            arguments = json.dumps(json.loads(arguments))
        return await _call(self, tool, arguments)

    def rewrite(script: dict[str, Any]) -> None:
        for written in script["calls"]:
            with suppress(ValueError, RecursionError):
                written[1] = json.dumps(json.loads(written[1]))

    patch.setattr(ClientSession, "call", call)
    _change_rows(patch, rewrite)


def numbers_are_normalised(patch: pytest.MonkeyPatch) -> None:
    """The answer is stripped and its thousands points are taken out, to be kind."""

    async def verify(self: ClientSession, answer: str | None, truncated: bool = False) -> Verdict:
        return await _verify(self, _normalised(answer), truncated)

    patch.setattr(ClientSession, "verify", verify)
    _change_rows(patch, lambda script: script.update(answer=_normalised(script["answer"])))


def _normalised(answer: str | None) -> str | None:
    return answer and re.sub(r"(?<=\d)\.(?=\d{3}\b)", "", answer.strip())


def _change_rows(patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what Verifiers, which has no client of ours, is given to play."""

    def changed(episode: parity.Episode) -> dict[str, Any]:
        row = _as_row(episode)
        change(row["script"])
        return row

    patch.setattr(parity, "as_row", changed)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        ids_are_a_counter,
        the_id_is_shown,
        rows_tell_the_record,
        reward_is_shaped_by_the_client,
        malformed_calls_raise,
        identity_is_checked_once,
        faults_become_zero_reward,
        an_unplayed_episode_is_zero,
        the_last_session_wins,
        faults_are_forgotten,
        capacity_sticks,
        rollouts_leave_their_socket,
        verification_is_public,
        calls_of_a_turn_change_places,
        arguments_are_written_anew,
        numbers_are_normalised,
        a_lost_bridge_is_an_observation,
        a_new_client_inherits_the_fault,
    )
}
