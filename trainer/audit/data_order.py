"""What a trainer has to train on next: rows of its dataset in the sampler's order, and tasks in the pool's."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from datasets import Dataset

from gymqual.trainer.audit import training_rows
from gymqual.trainer.runs.distributed import ranks_of
from gymqual.trainer.runs.errors import AuditError


class Pool:
    """The order of rows and tasks, as the configuration has it."""

    def __init__(self, trainer: Any, tasks: Sequence[str] | None) -> None:
        """Take the dataset as it is now. ``tasks`` are due one a group, in order; None: nothing is said of them."""
        self._tasks = tasks
        self._ranks = ranks_of(trainer)
        self._dataset = trainer.train_dataset if isinstance(trainer.train_dataset, Dataset) else None
        self._order = _rows(trainer) if self._dataset is not None else count()
        self._rows: list[int] = []
        """Rows of the dataset by group, as far as they were asked for."""
        self._groups = 0
        """Groups that were begun."""

    def require_next(self, inputs: Sequence[Any], group_size: int) -> None:
        """Hold this process's rows of a generation batch to the ones that are due; raises AuditError."""
        if self._dataset is None:
            return
        begun, first = self._groups, self._ranks.rank * len(inputs)
        self._groups += self._ranks.count * len(inputs) // group_size
        for place, given in enumerate(inputs, start=first):
            if place % group_size and place != first:
                continue
            group = begun + place // group_size
            row = self._row(group)
            due = self._dataset[row]
            # A trainer may leave columns out that it has no use for.
            if not all(training_rows.equal(value, due.get(name)) for name, value in given.items()):
                raise AuditError("data", f"group {group} is not row {row} of the dataset, which is due")

    def skip(self, groups: int) -> None:
        """Go on behind the groups of an earlier part of the run."""
        self._groups += groups

    def require_task(self, task: str, group: int, rollout: int) -> None:
        """Hold a rollout's task to the pool's order; raises AuditError."""
        if self._tasks is None:
            return
        row = self._row(group)
        due = self._tasks[row] if row < len(self._tasks) else "none"
        if task != due:
            raise AuditError("tasks", f"played {task}, the pool has {due}", rollout=rollout)

    def _row(self, group: int) -> int:
        self._rows += islice(self._order, max(0, group + 1 - len(self._rows)))
        return self._rows[group]


def _rows(trainer: Any) -> Iterator[int]:
    """Yield rows in the order that TRL documents: whole batches of an epoch, a permutation of each if shuffled.

    The permutations are one generator's, one after another, or each its own where a trainer seeds them by epoch.
    """
    total, batch = len(trainer.train_dataset), trainer.args.generation_batch_size // trainer.num_generations
    seed, shuffled = trainer.args.seed, trainer.shuffle_dataset
    generator = torch.Generator().manual_seed(seed)
    # Of a pool that makes no whole batch nothing is ever trained.
    for epoch in count() if total >= batch else ():
        if getattr(trainer, "seeds_epochs", False):
            generator.manual_seed(seed + epoch)
        order = torch.randperm(total, generator=generator).tolist() if shuffled else range(total)
        yield from order[: total - total % batch]
