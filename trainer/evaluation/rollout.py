"""Batched multi-turn rollouts for evaluation: token in, token out, through any gym.

What a row has sampled is never decoded and encoded again: the next turn's context is the last context, the
sampled ids, and the ids of the tool's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from gymqual.gyms.base import Observation, TaskSet, ToolCall, Verdict
from gymqual.trainer.policy.transcripts import call_of, render_ids, token_id, tool_schemas

MAX_NEW_TOKENS = 64
"""Sampled tokens a turn at most."""
MAX_TURNS = 4
"""Turns an episode at most; three are enough."""


class EvaluationSession(Protocol):
    """What evaluation needs of a session."""

    def call(self, tool: str, arguments: str) -> Observation:
        """Make one call, its arguments as the model wrote them."""
        ...

    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """End the episode by an answer, None where there is none."""
        ...

    def close(self) -> None:
        """Release the session."""
        ...


class EvaluationGym(Protocol):
    """What evaluation needs of a gym: ``gymqual.gyms.blocking.BlockingGym`` or ``gymqual.gyms.local.LocalGym``."""

    def open(self, task_id: str) -> EvaluationSession:
        """Open a session of a task."""
        ...


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The defaults draw from the model's own distribution, nothing cut off."""

    temperature: float = 1.0
    greedy: bool = False
    seed: int = 0

    def arguments(self) -> dict[str, Any]:
        """Return arguments of ``generate``; top-k is off, which transformers would set to 50."""
        if self.greedy:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}


@dataclass
class Rollout:
    """One evaluated episode."""

    task_id: str
    context: list[int]
    """All ids so far: prompt, sampled, observations."""
    calls: list[ToolCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    sampled: int = 0
    """Tokens the policy has sampled."""
    answer: str | None = None
    truncated: bool = False
    verdict: Verdict | None = None


@torch.inference_mode()
def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: TaskSet,
    gym: EvaluationGym,
    task_ids: Sequence[str],
    sampling: Sampling,
) -> list[Rollout]:
    """Play one episode of every task, all in one batch; raises InfrastructureError, which is never a miss."""
    torch.manual_seed(sampling.seed)
    sessions = [gym.open(task_id) for task_id in task_ids]
    try:
        rollouts = [Rollout(task_id, _prompt(tokenizer, tasks, task_id)) for task_id in task_ids]
        active = list(range(len(rollouts)))
        for _ in range(MAX_TURNS):
            if not active:
                break
            turns = _generate(model, tokenizer, [rollouts[row].context for row in active], sampling)
            active = [
                row
                for row, sampled in zip(active, turns, strict=True)
                if _take_turn(rollouts[row], sampled, tokenizer, sessions[row])
            ]
        for row, rollout in enumerate(rollouts):
            rollout.truncated = rollout.truncated or row in active
            rollout.verdict = sessions[row].verify(rollout.answer, rollout.truncated)
    finally:
        for session in sessions:
            session.close()
    return rollouts


def _prompt(tokenizer: PreTrainedTokenizerBase, tasks: TaskSet, task_id: str) -> list[int]:
    return render_ids(tokenizer, tasks.prompt(task_id), tools=tool_schemas(tasks), add_generation_prompt=True)


def _generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, contexts: list[list[int]], sampling: Sampling
) -> list[list[int]]:
    """Return the ids each row sampled, its end-of-turn token included if it came."""
    longest = max(map(len, contexts))
    padding, end_of_turn = token_id(tokenizer.pad_token_id), token_id(tokenizer.eos_token_id)
    ids = torch.tensor([[padding] * (longest - len(context)) + context for context in contexts])
    attention = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    generate: Any = model.generate
    output = generate(
        input_ids=ids.to(model.device),
        attention_mask=attention.to(model.device),
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=end_of_turn,
        pad_token_id=padding,
        **sampling.arguments(),
    )
    rows = output[:, longest:].tolist()
    ends = [row.index(end_of_turn) + 1 if end_of_turn in row else len(row) for row in rows]
    return [row[:end] for row, end in zip(rows, ends, strict=True)]


def _take_turn(
    rollout: Rollout, sampled: list[int], tokenizer: PreTrainedTokenizerBase, session: EvaluationSession
) -> bool:
    """Carry out what the policy wrote; False ends the episode."""
    message = parse_response(tokenizer, sampled, prefix=rollout.context)
    rollout.context = rollout.context + sampled
    rollout.sampled += len(sampled)
    if sampled[-1] != tokenizer.eos_token_id:
        rollout.truncated = True
        return False
    calls = [call_of(call) for call in message.get("tool_calls", ())]
    if not calls:
        rollout.answer = message["content"]
        return False
    shown = [session.call(call.tool, call.arguments) for call in calls]
    rollout.calls += calls
    rollout.observations += shown
    answers = [{"role": "tool", "name": c.tool, "content": o.text} for c, o in zip(calls, shown, strict=True)]
    rollout.context = rollout.context + tool_suffix(tokenizer, answers)
    return True


def tool_suffix(tokenizer: PreTrainedTokenizerBase, answers: list[dict[str, Any]]) -> list[int]:
    """Return the ids between a turn's end and the next turn's start: framing and the tools' answers.

    They are the difference of a dummy conversation rendered with and without them, cut after the end of turn,
    so that nothing the policy sampled is rendered again.
    """
    dummy = {"type": "function", "function": {"name": "dummy", "arguments": {}}}
    before = [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "", "tool_calls": [dummy]}]
    prefix = render_ids(tokenizer, before)
    whole = render_ids(tokenizer, [*before, *answers], add_generation_prompt=True)
    end = len(prefix) - prefix[::-1].index(token_id(tokenizer.eos_token_id))
    if whole[:end] != prefix[:end]:
        raise ValueError("the chat template does not keep the prefix of a tool-calling conversation")
    return whole[end:]
