"""How far rounding may move a row's log-probabilities: what a model makes of the row at other positions.

Rotary attention sees distances alone, so that all of it is rounding; ``audit.tolerances`` says where it matters.
"""

from typing import Any

import torch

from gymqual.harness.records.trace import Row

FURTHER = range(1, 17)
"""Positions that the row is moved on by, one at a time."""
TIMES = 4.0
"""Of the largest change."""


@torch.no_grad()
def rounding_of(model: Any, row: Row, temperature: float, most: float) -> float:
    """Return how much rounding explains of any trained id's log-probability, ``most`` at the utmost; nats."""
    ids = torch.tensor([row.prompt + row.completion], device=next(model.parameters()).device)
    length, room = ids.shape[1], int(getattr(model.config, "max_position_embeddings", 1 << 30))
    trained = torch.tensor(row.mask, dtype=torch.bool)
    seen = []
    for start in (0, *(further for further in FURTHER if length + further <= room)):
        positions = torch.arange(start, start + length, device=ids.device)[None]
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
        drawn = ids[0, len(row.prompt) :]
        seen.append(torch.nn.functional.cross_entropy(logits.float() / temperature, drawn, reduction="none").cpu())
    moved = (torch.stack(seen) - seen[0]).abs().amax(dim=0)[trained]
    return min(most, TIMES * moved.max().item()) if trained.any() else 0.0
