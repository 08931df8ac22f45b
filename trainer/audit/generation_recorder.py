"""What a trainer generated in one batch, taken from its own methods while they run."""

from collections.abc import Callable
from typing import Any

import torch

from gymqual.harness.records.trace import Sampling
from gymqual.trainer.audit import sampling_recorder
from gymqual.trainer.audit.independence import RandomStates
from gymqual.trainer.audit.trl_settings import require_agreeing
from gymqual.trainer.audit.unwrapped import Unwrapped
from gymqual.trainer.runs.errors import AuditError, Findings


class GenerationRecorder:
    """Stands in for the methods that generate and pay, and keeps what they made of the batch that runs."""

    def __init__(self, trainer: Any, findings: Findings, random_states: RandomStates) -> None:
        self.sampling: Sampling | None = None
        self.turns: list[list[sampling_recorder.Drawn]] = []
        """By call of generate, what each of its rows drew."""
        self.prompts: list[Any] = []
        self.prompt_ids: list[list[int]] = []
        self.completion_ids: list[list[int]] = []
        self.tool_mask: list[list[int]] | None = None
        self.messages: list[Any] = []
        """By rollout, what the trainer shows of it."""
        self.rewards: list[dict[str, float | None]] = []
        """By rollout of all processes, what it was paid by column."""
        self._trainer = trainer
        self._findings = findings
        self._random_states = random_states
        self._unwrapped = Unwrapped(trainer.accelerator)
        self._trl = {name: getattr(trainer, name) for name in self.hooks}

    @property
    def hooks(self) -> dict[str, Callable[..., Any]]:
        """What stands in for the trainer's own methods, by name."""
        return {
            "_generate_single_turn": self.on_generate_single_turn,
            "_generate": self.on_generate,
            "_calculate_rewards": self.on_calculate_rewards,
        }

    def on_generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **named: Any) -> Any:
        """Record one call of generate."""
        model = self._unwrapped.of(self._trainer.model_wrapped)
        with self._findings.rule():
            self._random_states.add(self._trainer.accelerator.device)
        with sampling_recorder.recording(model) as sampler:
            completion_ids, logprobs = self._trl["_generate_single_turn"](prompt_ids, *arguments, **named)
        if sampler.sampling is None:
            raise AuditError("recorded", "generate was not reached: only transformers' generate is audited")
        with self._findings.rule():
            require_agreeing(sampler.sampling, self._trainer.temperature)
        self.sampling = sampler.sampling
        self.turns.append(
            [
                sampling_recorder.Drawn(list(context), list(sampled), sampler.logprobs(row, sampled))
                for row, (context, sampled) in enumerate(zip(prompt_ids, completion_ids, strict=True))
            ]
        )
        return completion_ids, logprobs

    def on_generate(self, prompts: list[Any]) -> Any:
        """Begin a generation batch, and take what the trainer makes of it."""
        self.turns, self.prompts = [], list(prompts)
        made = self._trl["_generate"](prompts)
        self.prompt_ids, self.completion_ids, self.tool_mask, self.messages = made[:4]
        return made

    def on_calculate_rewards(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Take the rewards by column."""
        values = self._trl["_calculate_rewards"](*arguments, **named)
        names = self._trainer.reward_func_names
        self.rewards = [
            {name: None if value != value else value for name, value in zip(names, row, strict=True)}
            for row in values.tolist()
        ]
        return values
