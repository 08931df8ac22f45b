"""A policy that plays scripts: it samples the ids of the scripted message, whatever the logits would say."""

from typing import Any

import torch

from gymqual.gyms.base import TaskSet
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.policy.transcripts import call_message, render_ids, token_id


class ScriptedPolicy:
    """Stands where a model stands in an evaluation; its scores are never a model's."""

    device = torch.device("cpu")

    def __init__(self, policy: Policy, tasks: TaskSet, script: str, task_ids: list[str]) -> None:
        """Play ``script`` of every task; turns are told apart by how many end-of-turn tokens came before."""
        self._tokenizer = policy.tokenizer
        self._turns: dict[tuple[int, ...], list[list[int]]] = {}
        for task_id in task_ids:
            chosen = tasks.scripts(task_id)[script]
            messages = [call_message(call) for call in chosen.calls]
            messages.append({"role": "assistant", "content": chosen.answer or ""})
            prompt = tasks.prompt(task_id)
            start = render_ids(self._tokenizer, prompt, add_generation_prompt=True)
            self._turns[tuple(start)] = [self._sampled(prompt, start, message) for message in messages]

    def _sampled(self, prompt: list[dict[str, str]], start: list[int], message: dict[str, Any]) -> list[int]:
        whole = render_ids(self._tokenizer, [*prompt, message])
        end = len(whole) - whole[::-1].index(token_id(self._tokenizer.eos_token_id))
        return whole[len(start) : end]

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return each row followed by its script's next turn, padded as ``generate`` pads."""
        rows = [self._next(row[mask.bool()].tolist()) for row, mask in zip(input_ids, attention_mask, strict=True)]
        longest = max(map(len, rows))
        padding = token_id(self._tokenizer.pad_token_id)
        sampled = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
        return torch.cat([input_ids, sampled], dim=1)

    def _next(self, context: list[int]) -> list[int]:
        start = next(start for start in self._turns if tuple(context[: len(start)]) == start)
        ended = context[len(start) :].count(token_id(self._tokenizer.eos_token_id))
        # Every call is followed by its tool's message, which ends with the same token.
        return self._turns[start][ended // 2]
