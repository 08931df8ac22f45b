"""How a training samples its rollouts: to the bits of plain TRL, or faster by other bits.

``exact`` leaves out what changes no bit: peft's bookkeeping, and walks through the model's modules at every call.
``cached`` also keeps the key-value cache over the turns of a batch, and computes with the adapter merged into copies
of the weights: a second copy of every adapted matrix, for the time of a generation batch. The model's own weights are
never written. What either samples is held to the loss by the audit.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from trl.trainer import grpo_trainer

from trainer import adapter_forward
from trainer.turn_cache import TurnCache

Generation = Literal["exact", "cached"]


class Sampler:
    """What stands around the generation batches of one training; counts what its turn caches did."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.context_tokens = self.computed_tokens = self.restarts = 0
        self._layers: list[Any] | None = None

    @contextmanager
    def batch(self, accelerator: Any, wrapped: Any) -> Iterator[None]:
        """Sample one generation batch with weights that stay what they are; ``wrapped`` is the trainer's model."""
        model = accelerator.unwrap_model(wrapped)
        if self._layers is None:
            self._layers = adapter_forward.layers_of(model)
        cached = self.generation == "cached"
        make = adapter_forward.merged if cached else adapter_forward.lean
        with ExitStack() as stack:
            stack.enter_context(_unwrapped_once())
            stack.enter_context(adapter_forward.standing_in(self._layers, make))
            if cached:
                stack.enter_context(self._turns(model))
            yield

    @contextmanager
    def _turns(self, model: Any) -> Iterator[None]:
        turns = TurnCache(model)
        model.generate = turns
        try:
            yield
        finally:
            del model.generate
            self.context_tokens += turns.context_tokens
            self.computed_tokens += turns.computed_tokens
            self.restarts += turns.restarts


@contextmanager
def _unwrapped_once() -> Iterator[None]:
    """Let TRL unwrap its model for the first call of generate, and keep it so for those that follow."""
    module: Any = grpo_trainer
    original, held = module.unwrap_model_for_generation, {}

    with ExitStack() as stack:

        @contextmanager
        def unwrapped(model: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
            if id(model) not in held:
                held[id(model)] = stack.enter_context(original(model, *arguments, **named))
            yield held[id(model)]

        module.unwrap_model_for_generation = unwrapped
        try:
            yield
        finally:
            module.unwrap_model_for_generation = original
