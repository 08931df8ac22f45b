"""Bugs of the sampler: it is not the policy that is trained, or not at the settings that the loss is taken at."""

from typing import Any

import torch

from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.trainer.grpo.trainer import GymTrainer

Weights = dict[str, torch.Tensor]


@fault("AUDIT-06", "log-probability gap", resembles="vllm-project/vime #274")
class StalePolicy(GymTrainer):
    """Rollouts are sampled by the policy as it was before training."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return super()._generate_single_turn(*arguments, **named)


@fault("AUDIT-06", "log-probability gap", resembles="huggingface/trl #5147")
class OneStepBehind(GymTrainer):
    """Rollouts are sampled by the weights of the step before: the last update has not reached the sampler."""

    _before: Weights | None = None

    def _generate(self, prompts: list[Any]) -> Any:
        parameters = {n: p for n, p in self.accelerator.unwrap_model(self.model).named_parameters() if p.requires_grad}
        now = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        self._put(parameters, self._before or now)
        try:
            return super()._generate(prompts)
        finally:
            self._put(parameters, now)
            self._before = now

    @staticmethod
    @torch.no_grad()
    def _put(parameters: Any, values: Weights) -> None:
        for name, value in values.items():
            parameters[name].copy_(value)


@fault("AUDIT-06", "log-probability gap", resembles="huggingface/trl #4159")
class HiddenTemperature(GymTrainer):
    """The sampler divides its logits once more than it says."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        head = self.accelerator.unwrap_model(self.model).get_base_model().lm_head
        hook = head.register_forward_hook(lambda module, given, logits: logits / 0.7)
        try:
            return super()._generate_single_turn(*arguments, **named)
        finally:
            hook.remove()


@fault("AUDIT-06", "sampling", "log-probability gap", resembles="huggingface/trl #6789")
class OtherSampling(GymTrainer):
    """The sampler cuts the distribution off, the trainer does not."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.generation_config.top_k = 5


@fault("AUDIT-06", "log-probability gap", resembles="verl-project/verl-omni #280")
class SamplerInHalfPrecision(GymTrainer):
    """The sampler computes in bf16, the loss in fp32."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super()._generate_single_turn(*arguments, **named)


@fault("AUDIT-06", "log-probability gap", "gradient")
class DropoutInTheLoss(GymTrainer):
    """Dropout is on while the loss is taken, and was off while sampling."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        norm = self.accelerator.unwrap_model(model).get_base_model().model.norm
        hook = norm.register_forward_hook(lambda module, given, made: torch.nn.functional.dropout(made, 0.05))
        try:
            return super()._compute_loss(model, inputs)
        finally:
            hook.remove()


@fault(
    "AUDIT-06",
    "log-probability gap",
    "gradient",
    resembles="meta-pytorch/torchtune #2425",
    settings={"groups_per_step": 4},
)
class WrongPadSide(GymTrainer):
    """Prompts are padded at their end, so that a gap stands between prompt and completion."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        ids, masks = inputs["prompt_ids"].clone(), inputs["prompt_mask"].clone()
        for row, mask in zip(ids, masks, strict=True):
            padding = int((mask == 0).sum())
            row.copy_(row.roll(-padding))
            mask.copy_(mask.roll(-padding))
        return {**inputs, "prompt_ids": ids, "prompt_mask": masks}
