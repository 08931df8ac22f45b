"""How well a log-probability is known: what rounding alone makes of it.

Sampler and loss compute the same log-probability in other orders of sums (with and without a cache, padding, batch),
and at other positions: TRL's loss passes none, so that a row stands as many places further as its prompt is padded, to
which rotary attention is blind but for rounding. How much that comes to depends on the place. Where a deep model's
attention is all but undecided, a last bit becomes a ten thousandth of a nat: at one place in two trainings of ``mini``
over 256 steps. So a gap beyond the band of ordinary places is held to what the same row, by itself, makes of
standing elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gymqual.harness.records.trace import Row
from gymqual.trainer.runs.config import Bands

SHIFTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
"""Places that the row is moved by."""
APART = 4.0
"""How many times the largest change two sound computations may lie apart. The widest gap seen was about once that."""


@dataclass(frozen=True)
class Gap:
    """Two computations of one log-probability."""

    nats: float
    offset: int
    """Of its id in the completion."""
    explained: float
    """Nats that rounding explains there; 0 within the band, where nobody asked."""


def widest(
    gaps: Sequence[tuple[float, int]], bands: Bands, known: Callable[[], list[float]]
) -> tuple[Gap | None, float | None]:
    """Return the widest gap that nothing excuses, and how much rounding explains of those beyond the band.

    ``gaps`` are (nats, offset); ``known`` returns what ``explained`` does, and is asked only where a gap is too wide.
    """
    wide = [(nats, offset) for nats, offset in gaps if not nats <= bands.logprob_gap]
    if not wide:
        return None, None
    allowed = [min(nats, bands.logprob_gap_magnified) for nats in known()]
    beyond = [Gap(nats, offset, allowed[offset]) for nats, offset in wide if not nats <= allowed[offset]]
    return max(beyond, key=lambda gap: gap.nats, default=None), max(allowed[offset] for _, offset in wide)


@torch.no_grad()
def explained(model: Any, row: Row, temperature: float, autocast: Any) -> list[float]:
    """Return how far two sound computations of each completion id's log-probability may lie apart, nats.

    0 for a model that takes no positions. Absolute positions that a model was trained with are no rounding; the bound
    that no gap may pass is for them.
    """
    device = next(model.parameters()).device
    whole = row.prompt + row.completion
    room = getattr(model.config, "max_position_embeddings", None) or len(whole) + max(SHIFTS)
    shifts = torch.tensor([0, *(shift for shift in SHIFTS if len(whole) + shift <= room)], device=device)
    ids = torch.tensor([whole], device=device).expand(len(shifts), -1)
    positions = torch.arange(len(whole), device=device) + shifts[:, None]
    try:
        with autocast():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions).logits
    except TypeError:
        return [0.0] * len(row.completion)
    drawn = ids[:, len(row.prompt) :, None]
    logits = logits[:, len(row.prompt) - 1 : -1].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1).gather(2, drawn).squeeze(2)
    return (APART * (logprobs - logprobs[0]).abs().amax(dim=0)).tolist()
