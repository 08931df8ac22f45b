"""Tensors by name: one digest for a set of them, and what training changed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gymqual.harness.records.errors import HarnessError

ADAPTER = "adapter_model.safetensors"
"""Where peft saves an adapter's tensors, in the adapter's folder."""


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one sha256 over tensors of any shape: name, NUL and little-endian float32 bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(name.encode() + b"\0")
        digest.update(values.numpy().astype("<f4", copy=False).data)
    return digest.hexdigest()


def load_adapter(folder: Path) -> dict[str, torch.Tensor]:
    """Read a saved adapter's tensors by name, as peft names them on disk; raises HarnessError."""
    path = folder / ADAPTER
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise HarnessError(f"{path} cannot be read ({error}); name the folder of a saved adapter") from None


@dataclass(frozen=True)
class Change:
    """What training did to a set of tensors. Names and shapes are equal before and after."""

    changed: tuple[str, ...]
    """Tensors of which at least one element changed, in name order."""
    unchanged: tuple[str, ...]
    """The others."""
    elements_changed: float
    """Share of all elements, 0 to 1. Small steps in bf16 round away while a tensor still counts as changed."""
    update_ratio: dict[str, float | None]
    """By tensor, norm of the update over norm before it; null where that is 0, as of a fresh LoRA B."""


def compare_tensors(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> Change:
    """Compare element by element in float32; raises ValueError if names or shapes differ."""
    if differing := sorted(before.keys() ^ after.keys()):
        raise ValueError(f"{len(differing)} tensors are on one side only, the first is {differing[0]}")
    changed: list[str] = []
    ratios: dict[str, float | None] = {}
    different = total = 0
    for name in sorted(before):
        if before[name].shape != after[name].shape:
            raise ValueError(f"{name} has another shape: {tuple(before[name].shape)}, then {tuple(after[name].shape)}")
        old, new = before[name].float(), after[name].float()
        # NaN differs from itself, as it should here.
        count = int((old != new).sum())
        norm = old.norm().item()
        ratios[name] = (new - old).norm().item() / norm if norm else None
        changed += [name] if count else []
        different += count
        total += old.numel()
    unchanged = tuple(name for name in sorted(before) if name not in set(changed))
    return Change(tuple(changed), unchanged, different / total if total else 0.0, ratios)
