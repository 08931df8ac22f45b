"""How a training samples its rollouts: to the bits of plain TRL, or faster by other bits.

``exact`` leaves out what changes no bit: peft's bookkeeping, and walks through the model's modules at every call.
``cached`` also keeps the key-value cache over the turns of a batch, and computes with the adapter merged into copies
of the weights: a second copy of every adapted matrix, for the time of a generation batch. The model's own weights are
never written. What either samples is held to the loss by the audit.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from accelerate import DistributedType
from trl.trainer import grpo_trainer

from gymqual.trainer.audit.unwrapped import Unwrapped
from gymqual.trainer.grpo import adapter_forward
from gymqual.trainer.grpo.turn_cache import TurnCache
from gymqual.trainer.runs.config import Generation

GATHERED = (DistributedType.DEEPSPEED, DistributedType.FSDP)
"""Where no process holds all weights between two calls of generate."""

COUNTS = ("context_tokens", "computed_tokens", "restarts")


class Sampler:
    """What stands around the generation batches of one training; counts what its turn caches did."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.counts = dict.fromkeys(COUNTS, 0)
        """Of all turn caches, see ``TurnCache``; 0 if nothing is cached."""
        self._unwrapped: Unwrapped | None = None
        self._layers: list[Any] = []

    @contextmanager
    def batch(self, trainer: Any) -> Iterator[None]:
        """Sample one generation batch of a GRPOTrainer, with weights that stay what they are."""
        if self._unwrapped is None:
            self._unwrapped = Unwrapped(trainer.accelerator)
            self._layers = adapter_forward.layers_of(self._unwrapped.of(trainer.model_wrapped))
        cached = self.generation == "cached"
        make = adapter_forward.merged if cached else adapter_forward.lean
        with ExitStack() as stack:
            if not trainer.args.gradient_checkpointing and trainer.accelerator.distributed_type not in GATHERED:
                stack.enter_context(_unwrapping_by(self._unwrapped))
            stack.enter_context(adapter_forward.standing_in(self._layers, make))
            if cached:
                stack.enter_context(self._turns(self._unwrapped.of(trainer.model_wrapped)))
            yield

    @contextmanager
    def _turns(self, model: Any) -> Iterator[None]:
        turns = TurnCache(model)
        model.generate = turns
        try:
            yield
        finally:
            del model.generate
            for name in COUNTS:
                self.counts[name] += getattr(turns, name)


@contextmanager
def _unwrapping_by(unwrapped: Unwrapped) -> Iterator[None]:
    """Let TRL take the model without looking for it, where that is all that it does before it generates.

    TRL also ends gradient checkpointing and gathers weights there, and looks at every module for the one and for
    wrappers, at every call.
    """
    module: Any = grpo_trainer
    original = module.unwrap_model_for_generation

    @contextmanager
    def found(model: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        yield unwrapped.of(model)

    module.unwrap_model_for_generation = found
    try:
        yield
    finally:
        module.unwrap_model_for_generation = original
