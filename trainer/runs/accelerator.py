"""The GPU that a qualification runs on, and why one cannot be used: asked of torch, before anything is trained."""

from dataclasses import dataclass
from typing import Any

import torch

from gymqual.harness.records.errors import NotTestable

LOWEST_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that calculate in BF16; torch emulates it on older ones."""
FREE_BYTES = 4 * 2**30
"""What must be free, for the CUDA context and the embedded policy of 2 MB: generous, and not measured."""


@dataclass(frozen=True)
class Accelerator:
    """One visible GPU."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    cuda: str
    """Version of CUDA that torch was built with."""

    def __str__(self) -> str:
        major, minor = self.capability
        memory = f"{self.memory_bytes / 2**30:.0f} GiB"
        return f"{self.name}, compute capability {major}.{minor}, {memory}, CUDA {self.cuda}"


def describe(index: int, cuda: Any = torch.cuda, built_with: str | None = torch.version.cuda) -> Accelerator:
    """Return what a GPU is, usable or not."""
    found = cuda.get_device_properties(index)
    _, total = cuda.mem_get_info(index)
    return Accelerator(found.name, (found.major, found.minor), total, built_with or "none")


def find_accelerator(cuda: Any = torch.cuda, built_with: str | None = torch.version.cuda) -> Accelerator:
    """Return the one visible GPU; raises NotTestable naming what is missing and the fix."""
    if built_with is None:
        raise NotTestable(
            f"torch {torch.__version__} is built without CUDA; put the CUDA build of that version into .venv with pip"
        )
    if not cuda.is_available():
        raise NotTestable(
            f"torch finds no CUDA GPU; nvidia-smi must show one, with a driver that runs CUDA {built_with}, and "
            "CUDA_VISIBLE_DEVICES must not hide it"
        )
    if (count := cuda.device_count()) != 1:
        raise NotTestable(f"{count} GPUs are visible, one is examined; name it with CUDA_VISIBLE_DEVICES=0")
    found = describe(0, cuda, built_with)
    if found.capability < LOWEST_CAPABILITY:
        major, minor = found.capability
        raise NotTestable(f"{found.name} has compute capability {major}.{minor}, without BF16; use one of 8.0 or newer")
    free, total = cuda.mem_get_info(0)
    if free < FREE_BYTES:
        held = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of {found.name} are free"
        raise NotTestable(f"{held}, {FREE_BYTES / 2**30:.0f} are needed; end what holds the rest (nvidia-smi shows it)")
    return found
