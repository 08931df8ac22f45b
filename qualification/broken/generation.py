"""Defects of how rollouts are sampled: what a faster sampler gets wrong, each with its mode of generation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from gymqual.trainer.grpo import adapter_forward
from gymqual.trainer.grpo.adapter_forward import Forward, Plain
from gymqual.trainer.grpo.turn_cache import TurnCache

_merged, _begun, _continued, _keep = (
    adapter_forward.merged,
    TurnCache._begun,
    TurnCache._continued,
    TurnCache._keep,
)


def the_scaling_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An adapter that is added as it stands, without alpha over rank."""

    def lean(parts: Plain) -> Forward:
        return lambda x: linear(x, parts.weight, parts.bias) + linear(linear(x, parts.a), parts.b)

    patch.setattr(adapter_forward, "lean", lean)


def merged_weights_are_kept(patch: pytest.MonkeyPatch) -> None:
    """An adapter that is merged once, and not again after an update."""
    made: dict[int, Forward] = {}
    patch.setattr(adapter_forward, "merged", lambda parts: made.setdefault(id(parts.layer), _merged(parts)))


def padding_is_attended_to(patch: pytest.MonkeyPatch) -> None:
    """A mask of ones over the cache, in which padding stands, and what was sampled behind an end."""

    def continued(self: TurnCache, *arguments: Any) -> Any:
        cache, ids, mask = _continued(self, *arguments)
        return cache, ids, torch.ones_like(mask)

    patch.setattr(TurnCache, "_continued", continued)


def prompts_are_cached_over_updates(patch: pytest.MonkeyPatch) -> None:
    """Keys and values of a prompt that is seen again are those of the weights that saw it first."""
    seen: dict[bytes, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def begun(self: TurnCache, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        cache, *others = _begun(self, ids, mask)
        for number, (keys, values) in enumerate(seen.get(ids.numpy().tobytes(), ())):
            cache.update(keys, values, number)
        return cache, *others

    def keep(self: TurnCache, cache: Any, made: torch.Tensor, mask: torch.Tensor, *others: Any) -> None:
        given = made[:, : mask.size(1)]
        last = given.size(1) - 1
        computed = [(layer.keys[:, :, :last], layer.values[:, :, :last]) for layer in cache.layers]
        seen.setdefault(given.numpy().tobytes(), computed)
        _keep(self, cache, made, mask, *others)

    patch.setattr(TurnCache, "_begun", begun)
    patch.setattr(TurnCache, "_keep", keep)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        the_scaling_is_forgotten,
        merged_weights_are_kept,
        padding_is_attended_to,
        prompts_are_cached_over_updates,
    )
}
SEEN_IN: dict[str, dict[str, Any]] = {
    "the_scaling_is_forgotten": {"generation": "exact"},
    "merged_weights_are_kept": {"generation": "cached"},
    "padding_is_attended_to": {"generation": "cached"},
    "prompts_are_cached_over_updates": {
        "generation": "cached",
        "tasks": ("v1/train/43/0",),
        "repeat_pool": True,
    },
}
"""The settings of a training in which a defect shows."""
