"""One key-value cache for all turns of a batch of rollouts: what a turn has computed, the next one does not again.

Sound while the weights stay what they are, so that a cache lives for one generation batch. What is computed is the
same function in another order of sums: other bits than with a prefill of every turn.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


@dataclass(frozen=True)
class Kept:
    """What stands in the cache: R rows of P places, all but the last place computed."""

    cache: DynamicCache
    ids: torch.Tensor
    """(R, P) as they lie, padding and what was sampled behind an end among them."""
    mask: torch.Tensor
    """(R, P), 1 for the ids of a row, 0 for all else."""
    rows: list[list[int]]
    """The ids of every row."""


class TurnCache:
    """Stands where a model's ``generate`` stands, for one generation batch.

    ``context_tokens`` counts what calls were given, ``computed_tokens`` what of it the model had to be run over, and
    ``restarts`` the calls behind the first that continued no earlier one and began anew.
    """

    def __init__(self, model: Any) -> None:
        self.context_tokens = self.computed_tokens = self.restarts = 0
        self._model = model
        self._generate = model.generate
        self._kept: Kept | None = None

    def __call__(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: Any
    ) -> torch.Tensor:
        """Sample behind (R, T) ids padded at the left; return (R, T + sampled), as ``generate`` does."""
        rows = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        places = self._places(rows)
        self.restarts += self._kept is not None and not places
        cache, ids, mask = self._continued(rows, places) if places else self._begun(input_ids, attention_mask)
        self.context_tokens += sum(map(len, rows))
        self.computed_tokens += int(mask[:, cache.get_seq_length() :].sum())
        made = self._generate(input_ids=ids, attention_mask=mask, cache=cache, generation_config=generation_config)
        sampled = made[:, ids.size(1) :]
        self._keep(cache, made, mask, rows, _until_end(sampled, generation_config.eos_token_id))
        return torch.cat([input_ids, sampled], dim=1)

    def _places(self, rows: list[list[int]]) -> list[int]:
        """Return by row which kept one it goes on from; empty if not every row goes on from one."""
        kept = self._kept
        if kept is None or not all(type(layer) is DynamicLayer for layer in kept.cache.layers):
            # A window over places would count padding, too.
            return []
        starts = [(len(row), tuple(row)) for row in kept.rows]
        found = []
        for row in rows:
            place = next((at for at, (n, start) in enumerate(starts) if n < len(row) and tuple(row[:n]) == start), None)
            if place is None:
                return []
            found.append(place)
        return found

    def _begun(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        return DynamicCache(config=self._model.config), ids, mask

    def _continued(self, rows: list[list[int]], places: list[int]) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Return cache, ids and mask of rows that go on: behind what is kept, what is new, padded at its left."""
        kept = self._kept
        assert kept is not None
        index = torch.tensor(places, device=kept.ids.device)
        kept.cache.batch_select_indices(index)
        new = [row[len(kept.rows[place]) :] for row, place in zip(rows, places, strict=True)]
        width = max(map(len, new))
        ids = kept.ids.new_tensor([[0] * (width - len(each)) + each for each in new])
        mask = kept.mask.new_tensor([[0] * (width - len(each)) + [1] * len(each) for each in new])
        return kept.cache, torch.cat([kept.ids[index], ids], dim=1), torch.cat([kept.mask[index], mask], dim=1)

    def _keep(
        self, cache: DynamicCache, made: torch.Tensor, mask: torch.Tensor, rows: list[list[int]], drawn: torch.Tensor
    ) -> None:
        """Keep what a call has computed; ``drawn`` (R, sampled) is 1 for what a row sampled, up to its end."""
        sampled = made[:, mask.size(1) :]
        whole = [row + ids[own.bool()].tolist() for row, ids, own in zip(rows, sampled, drawn, strict=True)]
        self._kept = Kept(cache, made, torch.cat([mask, drawn.to(mask.dtype)], dim=1), whole)


def _until_end(sampled: torch.Tensor, ends: int | list[int]) -> torch.Tensor:
    """Return 1 for every id up to the first that ends a row, 0 behind it; the shape of ``sampled``."""
    ended = torch.isin(sampled, torch.tensor(ends, device=sampled.device)).int()
    return ((ended.cumsum(dim=1) - ended) == 0).int()
