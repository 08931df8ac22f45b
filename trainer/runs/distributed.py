"""The processes of one training, as ``torchrun`` starts them, and what they tell each other.

``gather``, ``wait``, ``once`` and ``total`` are to be called by all processes in the same order, or all would wait. A
process that fails leaves its reason and ends; the others learn of it from a broken connection, and read the reason.
"""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState

from gymqual.harness.records.errors import HarnessError

Value = TypeVar("Value")
Tensors = dict[str, torch.Tensor]
WORLD_SIZE = "WORLD_SIZE"
"""Set by ``torchrun``: how many processes there are."""
BROKEN = ("onnection", "gloo", "NCCL")
"""In the text of what a broken connection raises: it has no type of its own."""
STORE_LIMIT_S = 10.0
LOST = "stopped: another process of the training ended"


class ProcessLost(HarnessError):
    """Another process ended while this one waited for it."""


def is_broken(error: RuntimeError) -> bool:
    """Return whether this is what a broken connection to another process raises."""
    return any(word in str(error) for word in BROKEN)


@dataclass(frozen=True)
class Ranks:
    """This process among the ``count`` processes of a training."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and owns the gym's service."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Return every process's value, by rank."""
        if self.count == 1:
            return [value]
        made: list[Any] = [None] * self.count
        try:
            torch.distributed.all_gather_object(made, value)
        except RuntimeError as error:
            if not is_broken(error):
                raise
            raise ProcessLost("another process of the training ended; what it said stands above") from None
        return made

    def wait(self) -> None:
        """Return once every process has come here."""
        self.gather(None)

    def once(self, act: Callable[[], Value]) -> Value:
        """Let the first process act, and return to all what came of it; a HarnessError is raised in all."""
        if self.count == 1:
            return act()
        told: Any = (None, "")
        if self.is_first:
            try:
                told = (act(), "")
            except ProcessLost:
                raise
            except HarnessError as error:
                told = (None, str(error))
        value, failed = self.gather(told)[0]
        if failed:
            raise HarnessError(failed)
        return value

    def total(self, tensors: Tensors) -> Tensors:
        """Return the sum of every process's tensors, by name; float64 on the CPU, as they must be."""
        if self.count == 1 or not tensors:
            return tensors
        flat = torch.cat([value.flatten() for value in tensors.values()])
        if torch.distributed.get_backend() == "nccl":
            flat = flat.cuda()
        torch.distributed.all_reduce(flat)
        parts = flat.cpu().split([value.numel() for value in tensors.values()])
        return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}

    def leave(self, reason: str) -> None:
        """Leave the reason why this process ends, for the first one to find."""
        with suppress(RuntimeError):
            _store().set(_key(self.rank), reason)

    def left(self) -> str:
        """Return the reason that another process has left, with its number; empty where none has."""
        with suppress(RuntimeError):
            for rank in range(1, self.count):
                if _store().check([_key(rank)]):
                    return f"{_store().get(_key(rank)).decode()} (process {rank})"
        return ""


ALONE = Ranks()


def joined() -> Ranks:
    """Return this process among those that ``torchrun`` has started, once they have found each other."""
    if int(os.environ.get(WORLD_SIZE, "1")) == 1:
        return ALONE
    state = PartialState(cpu=not torch.cuda.is_available())
    return Ranks(state.process_index, state.num_processes)


def part() -> None:
    """Leave the other processes: torch's threads must have ended before the interpreter does."""
    if torch.distributed.is_initialized():
        # A trainer is part of cycles, and its wrapped model holds the group.
        gc.collect()
        torch.distributed.destroy_process_group()


def ranks_of(trainer: Any) -> Ranks:
    """Return this process among those that a trainer runs in."""
    return Ranks(trainer.accelerator.process_index, trainer.accelerator.num_processes)


def merged(lists: Sequence[Sequence[Value]]) -> list[Value]:
    """Return every process's values in one list, by rank."""
    return [value for values in lists for value in values]


def _store() -> Any:
    """Return the store that the processes have met at; ``torchrun`` keeps it, so that it outlives each of them."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    distributed: Any = torch.distributed
    return distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_LIMIT_S))


def _key(rank: int) -> str:
    return f"gymqual/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}/stopped"
