"""What a trainer has to train on next: rows of its dataset in the sampler's order, and tasks in the pool's."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from datasets import Dataset

from trainer.errors import AuditError


class Pool:
    """The order of rows and tasks, as the configuration has it."""

    def __init__(self, trainer: Any, tasks: Sequence[str] | None) -> None:
        """Take the dataset as it is now. ``tasks`` are due one a group, in order; None: nothing is said of them."""
        self._tasks = tasks
        self._dataset = trainer.train_dataset if isinstance(trainer.train_dataset, Dataset) else None
        self._order = _rows(trainer) if self._dataset is not None else iter(())
        self._task_order = _rows(trainer) if self._dataset is not None else count()
        self._due: list[int] = []
        """Rows of the dataset whose tasks are due, by group."""

    def require_next(self, inputs: Sequence[Any], group_size: int) -> None:
        """Hold the rows of a generation batch to the ones that are due; raises AuditError."""
        if self._dataset is None:
            return
        due = list(islice(self._order, len(inputs) // group_size))
        for group, index in enumerate(due):
            if inputs[group * group_size] != self._dataset[index]:
                raise AuditError("data", f"group {group} of the batch is not row {index} of the dataset, which is due")

    def skip(self, groups: int) -> None:
        """Go on behind the groups of an earlier part of the run."""
        for _ in islice(self._order, groups):
            pass

    def require_task(self, task: str, group: int, rollout: int) -> None:
        """Hold a rollout's task to the pool's order; raises AuditError."""
        if self._tasks is None:
            return
        while len(self._due) <= group:
            self._due.append(next(self._task_order))
        row = self._due[group]
        due = self._tasks[row] if row < len(self._tasks) else "none"
        if task != due:
            raise AuditError("tasks", f"played {task}, the pool has {due}", rollout=rollout)


def _rows(trainer: Any) -> Iterator[int]:
    """Yield rows in the order that TRL documents: whole batches of an epoch, a permutation of each if shuffled.

    The permutations are one generator's, one after another, or each its own where a trainer seeds them by epoch.
    """
    total, batch = len(trainer.train_dataset), trainer.args.generation_batch_size // trainer.num_generations
    seed, shuffled = trainer.args.seed, trainer.shuffle_dataset
    generator = torch.Generator().manual_seed(seed)
    for epoch in count():
        if total < batch:
            return
        if getattr(trainer, "seeds_epochs", False):
            generator.manual_seed(seed + epoch)
        order = torch.randperm(total, generator=generator).tolist() if shuffled else range(total)
        yield from order[: total - total % batch]
