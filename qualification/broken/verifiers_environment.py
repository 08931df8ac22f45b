"""The Verifiers environment with one defect at a time, each what a real environment got wrong.

Staged as ``verifiers_environment`` before the real one on the path of upstream's commands; ``GYMQUAL_DEFECT`` names
the defect. Tool server included: upstream starts it as the module that its class stands in.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gymqual.gyms import loaded

loaded.install()

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.agent import Agents  # noqa: E402
from verifiers.v1.serve import EnvServer  # noqa: E402
from verifiers.v1.types import Response, TurnTokens  # noqa: E402

from gymqual.gyms.base import GymIdentity  # noqa: E402
from gymqual.gyms.german.tasks import find_task  # noqa: E402
from gymqual.gyms.german.tools import Call, Observation  # noqa: E402
from gymqual.gyms.verifiers import fixture, rules, taskset  # noqa: E402
from gymqual.gyms.verifiers.evidence import episode_of, read_transcript, verdict_of  # noqa: E402
from gymqual.gyms.verifiers.offline import use_this_interpreter_for_the_chat_program  # noqa: E402
from gymqual.gyms.verifiers.rules import budget_of  # noqa: E402
from gymqual.gyms.verifiers.taskset import GermanOrdersEnv, GermanOrdersTask, GermanOrdersTaskset  # noqa: E402
from gymqual.gyms.verifiers.tools import EpisodeState, GermanOrdersToolset  # noqa: E402

__all__ = ["GermanOrdersEnv", "GermanOrdersTaskset"]

DEFECT = os.environ["GYMQUAL_DEFECT"]

# On record is the file that it stands in for, so that only the defect shows.
loaded.record(loaded.PACKAGE.parents[2] / "verifiers" / "verifiers_environment.py")


class BrokenToolset(GermanOrdersToolset):
    """The tool server under a defect."""

    # tools_are_prefixed: upstream's default, tools that no other gym and no trainer knows.
    TOOL_PREFIX = "orders" if DEFECT == "tools_are_prefixed" else None
    first_task = ""

    async def observe(self, state: EpisodeState, call: Call) -> Observation:
        # state_of_the_process: whoever comes first decides which record a shared server shows.
        if DEFECT == "state_of_the_process":
            self.first_task = self.first_task or state.task_id
            state.task_id = self.first_task
        return await super().observe(state, call)


GermanOrdersTaskset.toolsets = classmethod(  # type: ignore[assignment]
    lambda cls, config: [BrokenToolset(vf.SharedToolsetConfig())]
)

if DEFECT == "the_number_alone_pays":
    # A verifier that looks at the final number only.
    async def strict(self: GermanOrdersTask, trace: vf.Trace) -> float:
        return verdict_of(trace.info["episode"]).parts["answer"] if "episode" in trace.info else 0.0

    GermanOrdersTask.strict = vf.reward(strict)

if DEFECT == "fixture_makes_up_logprobs":
    # A fixture that dresses its traces up as a model's: a trainer would take them.
    honest = fixture.response_from_wire

    def dressed(completion: fixture.ChatCompletion) -> Response:
        tokens = TurnTokens(prompt_ids=[1, 2], completion_ids=[3], completion_logprobs=[-0.1])
        return honest(completion).model_copy(update={"tokens": tokens})

    fixture.response_from_wire = dressed

if DEFECT == "prompt_tells_the_record":
    # Ground truth that rides along in the prompt.
    plain = GermanOrdersTaskset.tasks_of

    def telling(self: GermanOrdersTaskset, rows: Iterable[taskset.Row]) -> Iterator[GermanOrdersTask]:
        for task in plain(self, rows):
            yield task.with_system_prompt(f"{task.data.system_prompt} {find_task(task.data.task_id).quantities}")

    GermanOrdersTaskset.tasks_of = telling

if DEFECT == "guard_is_off":
    # What upstream does by itself: evidence is kept, and the rollout is scored whatever happened.
    async def finalize(self: GermanOrdersTask, trace: vf.Trace) -> None:
        state = trace.state.model_dump(mode="json")
        trace.info["tools"] = {name: state[name] for name in ("core", "served", "served_at", "faults")}
        record = trace.model_dump(mode="json", exclude_none=True)
        trace.info["episode"] = episode_of(self.data.task_id, read_transcript(record), bool(budget_of(record)))

    GermanOrdersTask.finalize = finalize

if DEFECT == "identity_is_a_constant":
    # Digests shipped with a release instead of taken from what runs.
    real = taskset.identify

    def constant(gym: str, upstream: taskset.Upstream) -> GymIdentity:
        identity = real(gym, upstream)
        return replace(identity, sources=dict.fromkeys(identity.sources, "0" * 64))

    taskset.identify = constant

if DEFECT == "mask_covers_the_observations":
    # SkyRL #710: whole messages marked as sampled, so that a trainer learns to write what the tools answer.
    finished = GermanOrdersTask.finalize

    async def generous(self: GermanOrdersTask, trace: vf.Trace) -> None:
        await finished(self, trace)
        for node in trace.nodes:
            if node.message.role == "tool":
                node.mask = [True] * len(node.token_ids)

    GermanOrdersTask.finalize = generous

if DEFECT == "positive_logprobs_pass":
    # Upstream by itself: probabilities in the place of their logarithms are taken for them.
    rules.lacking_tokens = lambda trace: ""

if DEFECT == "evidence_stays_in_the_state":
    # Upstream saves no state: what is judged by it cannot be judged again.
    async def strict(self: GermanOrdersTask, trace: vf.Trace) -> float:
        calls = [[served.tool, served.arguments] for served in trace.state.served]
        return verdict_of({**self._episode(trace), "calls": calls}).reward

    GermanOrdersTask.strict = vf.reward(strict)

if DEFECT == "the_server_picks_the_task":
    # An environment server that counts on its own order instead of the task on the wire.
    EnvServer._build_task = lambda self, data: next(iter(self.env.taskset))

if DEFECT == "answers_are_cut":
    # A server's or client's own small limit, 16 tokens in vLLM's completions once, that no caller had asked for.
    bounded = GermanOrdersEnv.setup

    async def setup(self: GermanOrdersEnv, agents: Agents) -> None:
        await bounded(self, agents)
        sampling = agents.agent.ctx.sampling.model_copy(update={"max_tokens": 2})
        agents.agent.ctx = replace(agents.agent.ctx, sampling=sampling)

    GermanOrdersEnv.setup = setup

use_this_interpreter_for_the_chat_program()

if __name__ == "__main__":
    BrokenToolset.run()
