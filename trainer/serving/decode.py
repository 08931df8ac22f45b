"""One reply, token by token, with the log-probability of every id under the distribution it was drawn from.

Evaluation in batches uses ``generate``; this is for serving, where a request's ids must not depend on who else
asks, a reply must stop when its reader has gone, and a model folder's own generation settings must not leak in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel, TemperatureLogitsWarper, TopPLogitsWarper

GREEDY_BELOW = 1e-3
"""Temperatures that would only overflow the logits."""


@dataclass(frozen=True)
class Decoding:
    """How a reply is drawn. The defaults draw from the model's own distribution, nothing cut off."""

    max_tokens: int
    stop_ids: frozenset[int]
    """Ids that end a reply; the one that came is part of it."""
    temperature: float = 1.0
    """0, or less than GREEDY_BELOW, takes the likeliest token."""
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True)
class SampledToken:
    """One id and its natural log-probability after temperature and top-p; if greedy, the model's own."""

    id: int
    logprob: float


@torch.inference_mode()
def sample(model: PreTrainedModel, context: list[int], decoding: Decoding) -> Iterator[SampledToken]:
    """Yield the reply to ``context`` as it is drawn; a reader that stops reading stops the model."""
    generator = torch.Generator(model.device)
    if decoding.seed is None:
        generator.seed()
    else:
        generator.manual_seed(decoding.seed)
    greedy = decoding.temperature < GREEDY_BELOW
    warpers = []
    if not greedy:
        warpers.append(TemperatureLogitsWarper(float(decoding.temperature)))
        if decoding.top_p < 1:
            warpers.append(TopPLogitsWarper(decoding.top_p))
    cache = DynamicCache(config=model.config)
    fed = torch.tensor([context], device=model.device)
    for _ in range(decoding.max_tokens):
        logits = model(input_ids=fed, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        for warp in warpers:
            logits = warp(fed, logits)
        logprobs = logits.log_softmax(-1)
        fed = logits.argmax(-1, keepdim=True) if greedy else torch.multinomial(logprobs.exp(), 1, generator=generator)
        token = int(fed)
        yield SampledToken(token, logprobs[0, token].item())
        if token in decoding.stop_ids:
            return
