"""How LoRA layers compute while a policy samples: their own result, without peft's bookkeeping around it.

A decoded token passes a small matrix per layer, and peft's Python around it costs more than the matrix. Only a plain
layer gets another forward, only for the time of a generation batch, and only without gradients: the loss and its
gradient stay peft's own, so that the audit's gap of log-probabilities holds one against the other.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import nn
from torch.nn.functional import linear

Forward = Callable[..., torch.Tensor]

_FORWARD = Linear.forward


@dataclass(frozen=True)
class Plain:
    """What a plain LoRA layer computes with: ``x W' + b + scaling * x A' B'``."""

    layer: Any
    active: Any
    """What the layer calls its active adapter, as it stands there."""
    adapter: str
    weight: torch.Tensor
    """(out, in), as all of them in ``weight.dtype``."""
    bias: torch.Tensor | None
    a: torch.Tensor
    """(rank, in)"""
    b: torch.Tensor
    """(out, rank)"""


def layers_of(model: nn.Module) -> list[Linear]:
    """Return the LoRA layers of a model, plain or not."""
    return [module for module in model.modules() if type(module) is Linear]


def plain(layer: Any) -> Plain | None:
    """Return what a layer computes with; None where peft does more: variants, dropout, hooks, mixed dtypes."""
    names = layer.active_adapters
    unusual = layer.disable_adapters or layer.merged or type(layer).forward is not _FORWARD or "forward" in vars(layer)
    if unusual or len(names) != 1 or names[0] not in layer.lora_A or names[0] in layer.lora_variant:
        return None
    name = names[0]
    base, a, b = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    if type(layer.lora_dropout[name]) is not nn.Identity or not all(map(_untouched, (base, a, b))):
        return None
    if a.bias is not None or b.bias is not None or not base.weight.dtype == a.weight.dtype == b.weight.dtype:
        return None
    return Plain(layer, layer._active_adapter, name, base.weight, base.bias, a.weight, b.weight)


def _untouched(module: Any) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks
    return type(module) is nn.Linear and not hooked and "forward" not in vars(module)


def lean(parts: Plain) -> Forward:
    """Return a forward of the same operations in the same order as peft's, which is the same bits."""
    weight, bias, a, b, adapter, scaling = (
        parts.weight, parts.bias, parts.a, parts.b, parts.adapter, parts.layer.scaling
    )  # fmt: skip
    return _else_its_own(parts, lambda x: linear(x, weight, bias) + linear(linear(x, a), b) * scaling[adapter])


def merged(parts: Plain) -> Forward:
    """Return a forward by one matrix, a copy of the weight with the adapter added: other bits, the same function.

    In less than single precision the copy's rounding would swallow the adapter: there the layer stays lean.
    """
    if parts.weight.dtype is not torch.float32:
        return lean(parts)
    with torch.no_grad():
        whole = torch.addmm(parts.weight, parts.b, parts.a, alpha=parts.layer.scaling[parts.adapter])
    bias = parts.bias
    return _else_its_own(parts, lambda x: linear(x, whole, bias))


def _else_its_own(parts: Plain, compute: Callable[[torch.Tensor], torch.Tensor]) -> Forward:
    """Return a forward that computes so while the layer is as it was found, and leaves all else to peft."""
    layer, active, dtype, own = parts.layer, parts.active, parts.weight.dtype, parts.layer.forward

    def forward(x: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        found = not (arguments or named or layer._disable_adapters or layer.merged_adapters)
        if found and layer._active_adapter == active and x.dtype is dtype and not torch.is_grad_enabled():
            return compute(x)
        return own(x, *arguments, **named)

    return forward


@contextmanager
def standing_in(layers: Iterable[Any], make: Callable[[Plain], Forward]) -> Iterator[None]:
    """Let every plain layer compute by what ``make`` returns, until the end; no weight is written."""
    found = [parts for parts in map(plain, layers) if parts is not None]
    try:
        for parts in found:
            parts.layer.forward = make(parts)
        yield
    finally:
        for parts in found:
            vars(parts.layer).pop("forward", None)
