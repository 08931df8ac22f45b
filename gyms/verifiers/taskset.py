"""The German task as a native v1 taskset, and the env that plays it by default without cloud, upload or network.

The guard is here: upstream scores a rollout 0, as if the model had failed, when a tool raises, when set-up or
rollout run out of time, and when a harness ends well after a failed model request. ``finalize`` keeps the evidence
in ``trace.info`` and raises if ``rules.fault_of`` finds the infrastructure at fault, so that nothing is scored.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import BaseModel, Field, field_validator
from verifiers.v1.agent import Agents
from verifiers.v1.configs.harness import HarnessConfig

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.german.tasks import POOLS, SPLIT_SHARES, SYSTEM_PROMPT, find_task, make_task
from gymqual.gyms.german.tools import Call
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.identity import Upstream, identify
from gymqual.gyms.verifiers.evidence import core_answer, episode_of, read_transcript, verdict_of
from gymqual.gyms.verifiers.rules import budget_of, classify, fault_of
from gymqual.gyms.verifiers.tools import EpisodeState, GermanOrdersToolset

UPSTREAM = Upstream(
    "verifiers", "verifiers", "PrimeIntellect-ai/verifiers v0.4.0 (equality with the published wheel not verified)"
)
READ_SHARE = 0.25
"""Part of ``timeout.rollout`` that a model server may say nothing for: three tries and their pauses fit in."""
READ_S = 120.0
"""The same where the rollout has no time-out."""

Fault = Literal["", "tool_raises", "tool_hangs", "tool_server_exits", "setup_hangs", "scoring_hangs"]
"""What the owner of a run can ask of a rollout's environment, to try the paths that faults take."""


class Scripted(BaseModel, frozen=True):
    """An episode that the fixture harness plays: calls as (tool, JSON text of its arguments), and the final message."""

    calls: tuple[tuple[str, str], ...] = ()
    answer: str | None = None
    at_once: bool = False
    """All calls stand in one message."""
    truncated: bool = False
    """A budget cuts the final message off."""


class GermanOrdersData(vf.TaskData):
    """One task as it goes on record: nothing of it but ``prompt`` and ``system_prompt`` reaches a model."""

    task_id: str
    script: Scripted | None = None
    """For the fixture harness; null for a model."""
    fault: Fault = ""


class Row(BaseModel, frozen=True, extra="forbid"):
    """One line of a file of rollouts."""

    task_id: str
    script: Scripted | None = None
    fault: Fault = ""

    @field_validator("task_id")
    @classmethod
    def _names_a_task(cls, task_id: str) -> str:
        find_task(task_id)
        return task_id


class GermanOrdersConfig(vf.TasksetConfig):
    """Which tasks: a run of indices, or a file of rollouts."""

    pool: str = "v1"
    split: str = "dev"
    seed: int = 0
    tasks: int = Field(256, ge=1)
    """Indices 0 to ``tasks`` - 1."""
    rollouts: Path | None = None
    """JSON lines, one ``Row`` each, instead of the four fields above."""

    @field_validator("pool")
    @classmethod
    def _known_pool(cls, pool: str) -> str:
        if pool not in POOLS:
            raise ValueError(f"{pool!r} is none of {', '.join(POOLS)}")
        return pool

    @field_validator("split")
    @classmethod
    def _known_split(cls, split: str) -> str:
        if split not in SPLIT_SHARES:
            raise ValueError(f"{split!r} is none of {', '.join(SPLIT_SHARES)}")
        return split


class GermanOrdersTask(vf.Task[GermanOrdersData, EpisodeState, vf.TaskConfig]):
    """One German order: look the record up, calculate, answer with the number."""

    @property
    def key(self) -> str:
        """The task's own id, whatever its place in a run; a repeated one is numbered."""
        return self.data.id or self.data.task_id

    async def setup(self, trace: vf.Trace) -> None:
        """Put on record what this process is, and open the episode."""
        trace.info["identity"] = _identity()
        trace.state.task_id = self.data.task_id
        trace.state.fault = self.data.fault
        if self.data.fault == "setup_hangs":
            await asyncio.sleep(3600)

    @vf.intercept
    async def answer_for_the_core(self, request: vf.Request) -> vf.Request | None:
        """Show the core's observation of every call that the tool server is not to see.

        Upstream's loop would answer malformed arguments and unknown tools in words of its own, or repair them.
        Upstream asks twice: with an empty result before a call is executed, which an answer here then prevents, and
        with the loop's messages before the model sees them.
        """
        answered = answer_for_the_core(self.data.task_id, request.messages)
        return None if answered == request.messages else request.model_copy(update={"messages": answered})

    @vf.stop
    async def infrastructure(self, trace: vf.Trace) -> bool:
        """End the rollout before its next model request once the tool server has failed."""
        # Upstream does not record a request that is still in flight when the clock runs out.
        trace.info["requests"] = trace.info.get("requests", 0) + 1
        trace.info["requested_at"] = time.time()
        return bool(trace.state.faults)

    async def finalize(self, trace: vf.Trace) -> None:
        """Keep the evidence; raises InfrastructureError if the rollout must not be scored."""
        if trace.stop_condition is None:
            # Nothing was run: ``vf-validate`` scores an untouched task.
            return
        state = trace.state.model_dump(mode="json")
        trace.info["tools"] = {name: state[name] for name in ("core", "served", "served_at", "faults")}
        record = trace.model_dump(mode="json", exclude_none=True)
        fault = fault_of(record)
        if fault:
            raise InfrastructureError(Kind(fault.kind), Scope.ROLLOUT, f"{fault.where}: {fault.detail}")
        trace.info["episode"] = episode_of(self.data.task_id, read_transcript(record), bool(budget_of(record)))

    @vf.reward
    async def strict(self, trace: vf.Trace) -> float:
        """1.0 for strict success by the core, else 0.0; from ``trace.info`` alone, so that saved traces score again."""
        if self.data.fault == "scoring_hangs":
            await asyncio.sleep(3600)
        return verdict_of(self._episode(trace)).reward

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """The core's milestones, for diagnosis."""
        return verdict_of(self._episode(trace)).parts

    async def validate(self, runtime: object) -> bool:
        """Valid iff the scripted oracle succeeds in the core."""
        tasks = GermanOrders()
        oracle = tasks.scripts(self.data.task_id)["oracle"]
        return tasks.replay(self.data.task_id, oracle.calls, oracle.answer).verdict.strict

    def _episode(self, trace: vf.Trace) -> dict[str, Any]:
        untouched = {"task_id": self.data.task_id, "calls": [], "answer": None, "truncated": False}
        return untouched if trace.stop_condition is None else trace.info["episode"]


class GermanOrdersTaskset(vf.Taskset[GermanOrdersTask, GermanOrdersConfig]):
    """German orders as a v1 taskset."""

    def load(self) -> Iterator[GermanOrdersTask]:
        """Yield the configured tasks; raises ValueError naming the line of a file that is no row."""
        return self.tasks_of(self._rows())

    def tasks_of(self, rows: Iterable[Row]) -> Iterator[GermanOrdersTask]:
        """Yield one task per row; a task id that comes again is numbered."""
        seen: dict[str, int] = {}
        for row in rows:
            seen[row.task_id] = number = seen.get(row.task_id, 0) + 1
            yield GermanOrdersTask(
                GermanOrdersData(
                    id=row.task_id if number == 1 else f"{row.task_id}#{number}",
                    task_id=row.task_id,
                    prompt=find_task(row.task_id).question,
                    system_prompt=SYSTEM_PROMPT,
                    script=row.script,
                    fault=row.fault,
                ),
                self.config.task,
            )

    def _rows(self) -> Iterator[Row]:
        config = self.config
        if config.rollouts is None:
            for index in range(config.tasks):
                yield Row(task_id=make_task(config.split, config.seed, index, config.pool).task_id)
            return
        for number, line in enumerate(config.rollouts.read_text(encoding="utf-8").splitlines(), 1):
            try:
                yield Row.model_validate_json(line)
            except ValueError as error:
                raise ValueError(f"taskset.rollouts: {config.rollouts}, line {number}: {error}") from None

    @classmethod
    def toolsets(cls, config: GermanOrdersConfig) -> list[vf.Toolset]:
        """One tool server for all rollouts."""
        return [GermanOrdersToolset(vf.SharedToolsetConfig())]


class GermanOrdersEnvConfig(vf.SingleAgentEnvConfig):
    """Upstream's single-agent configuration with defaults that stay on this machine."""

    agent: vf.AgentConfig = vf.AgentConfig(harness=HarnessConfig(id="null"), runtime=vf.SubprocessConfig())
    """Upstream's own defaults are the bash harness and its cloud runtime."""


class GermanOrdersEnv(vf.SingleAgentEnv, vf.Env[GermanOrdersEnvConfig]):
    """Upstream's single-agent env that makes a silent model server show."""

    async def setup(self, agents: Agents) -> None:
        """Bound how long the model server may say nothing; raises ValueError if the given bound could never show."""
        agent = agents.agent
        if getattr(agent.config.harness, "mode", "") == "direct":
            # A script is no policy.
            agent.trainable = False
        client = agent.ctx.client
        rollout_s = agent.timeout.rollout
        longest_s = READ_S if rollout_s is None else rollout_s * READ_SHARE
        read_s = client.timeout.read
        if read_s is None:
            timeout = client.timeout.model_copy(update={"read": longest_s})
            client = client.model_copy(update={"timeout": timeout})
            agent.config = agent.config.model_copy(update={"client": client})
            agent.ctx = replace(agent.ctx, client=client)
        elif rollout_s is not None and read_s > longest_s:
            raise ValueError(
                f"client.timeout.read is {read_s:g} s, but must fit three times into timeout.rollout, {rollout_s:g} s: "
                f"set it to {longest_s:g} s at most, so that a silent server is told from a long answer"
            )

    def complete(self, episode: vf.Episode) -> bool:
        """Whether ``--resume`` keeps an episode: all of its rollouts have a reward."""
        record = json.loads(episode.model_dump_json(exclude_none=True))
        return bool(record["traces"]) and all(classify(trace).reward is not None for trace in record["traces"])


def answer_for_the_core(task_id: str, messages: Sequence[Any]) -> list[Any]:
    """Return upstream's typed messages with the core's observations where they are not the tool server's to give."""
    answered: list[Any] = []
    calls: list[Call] = []
    texts: dict[str, str | None] = {}
    for message in messages:
        if message.role == "assistant":
            texts = {}
            for call in message.tool_calls or []:
                calls.append(Call(call.name, call.arguments))
                texts.setdefault(call.id, core_answer(task_id, calls))
        text = texts.get(message.tool_call_id) if message.role == "tool" else None
        answered.append(message if text is None else message.model_copy(update={"content": text}))
    return answered


@cache
def _identity() -> dict[str, Any]:
    # In the first set-up: every module of ours and of upstream that plays a rollout is loaded by then.
    return identify("verifiers", UPSTREAM).to_json()
