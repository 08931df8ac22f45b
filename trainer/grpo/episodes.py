"""What the trainer's environments and messages tell of a rollout, once it is over."""

from collections.abc import Mapping
from typing import Any

from gymqual.harness.records.trace import Episode, ToolUse
from gymqual.trainer.grpo.environment import GymEnvironment


def final_answer(messages: list[Mapping[str, Any]]) -> str | None:
    """Return the text of the last assistant message, None if a rollout does not end with one."""
    last = messages[-1]
    return last.get("content") or "" if last["role"] == "assistant" and not last.get("tool_calls") else None


def episode_of(environment: GymEnvironment) -> Episode:
    """Return what an environment recorded of its rollout, once it has a verdict."""
    verdict = environment._verdict
    assert verdict is not None, "an episode is recorded once it is judged"
    uses = [
        ToolUse(tool=call.tool, arguments=call.arguments, text=shown.text, is_error=shown.is_error)
        for call, shown in environment._calls
    ]
    return Episode(
        rollout=0,
        task_id=environment._task_id,
        calls=uses,
        answer=environment._answer,
        truncated=environment._truncated,
        reward=verdict.reward,
        strict=verdict.strict,
        parts=dict(verdict.parts),
        outcome=verdict.outcome,
        replay="local core",
    )
