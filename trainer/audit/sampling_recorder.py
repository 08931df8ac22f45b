"""What generate really drew: ids and the sampler's own log-probabilities, taken inside of generate.

TRL handles, cuts and concatenates what comes out of generate; transformers returns no log-probabilities at all.
Here both are taken where they are made: by a logits processor that stands last, behind temperature and every
other change of the distribution, and that changes nothing itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from gymqual.harness.records.trace import Sampling


@dataclass
class Drawn:
    """One row of one call of generate."""

    context: list[int]
    """All ids that the model saw, without padding."""
    sampled: list[int]
    logprobs: list[float]
    used: bool = False
    """Whether a rollout has been found that holds it."""


class SamplerRecorder(LogitsProcessor):
    """The last logits processor: notes the log-probability of every id that is drawn next."""

    def __init__(self) -> None:
        self.sampling: Sampling | None = None
        self._drawn: list[torch.Tensor] = []
        self._next: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note what the last draw was worth, and the distribution of the next. Returns ``scores`` as they are."""
        if self._next is not None:
            self._drawn.append(self._next.gather(1, input_ids[:, -1:]).squeeze(1).cpu())
        self._next = torch.log_softmax(scores.float(), dim=-1)
        return scores

    def logprobs(self, row: int, sampled: Sequence[int]) -> list[float]:
        """Return the log-probabilities of a row's draws, in nats."""
        values = [step[row].item() for step in self._drawn[: len(sampled)]]
        if len(values) < len(sampled) and self._next is not None:
            # Nothing was drawn after the last one.
            values.append(self._next[row, sampled[-1]].item())
        return values


@contextmanager
def recording(model: Any) -> Iterator[SamplerRecorder]:
    """Record one call of ``model.generate``. ``model`` is a transformers model, or a peft model around one."""
    generating = model.get_base_model() if hasattr(model, "get_base_model") else model
    recorder = SamplerRecorder()
    original = generating._get_logits_processor

    def with_recorder(generation_config: Any, *arguments: Any, **named: Any) -> LogitsProcessorList:
        processors = original(generation_config, *arguments, **named)
        recorder.sampling = effective_sampling(generation_config)
        processors.append(recorder)
        return processors

    generating._get_logits_processor = with_recorder
    try:
        yield recorder
    finally:
        del generating._get_logits_processor


def effective_sampling(config: Any) -> Sampling:
    """Return the sampling parameters that a generation config comes to."""
    greedy = not config.do_sample or (config.num_beams or 1) != 1
    return Sampling(
        temperature=0.0 if greedy else _or(config.temperature, 1.0),
        top_k=int(_or(config.top_k, 0)),
        top_p=_or(config.top_p, 1.0),
        min_p=_or(config.min_p, 0.0),
        repetition_penalty=_or(config.repetition_penalty, 1.0),
        max_new_tokens=int(_or(config.max_new_tokens, 0)),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
