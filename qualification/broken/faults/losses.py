"""Bugs of the loss: its scale, its sign, its type, and what it is divided by."""

from contextlib import nullcontext
from typing import Any

import torch

from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.qualification.broken.faults.tokens import TRUNCATING
from gymqual.trainer.grpo.trainer import GymTrainer

TWO_PASSES = {"gradient_accumulation": 2}
KL = {"beta": 0.2}
TWO_ITERATIONS = {"num_iterations": 2, "groups_per_step": 2}
"""Two groups: rewards then differ in the first batch, so that the policy has moved when the second is sampled."""


@fault("AUDIT-05", "gradient", resembles="modelscope/ms-swift #10117")
class HalfTheLoss(GymTrainer):
    """Scaled once too often, as with accumulation or several processes."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._compute_loss(model, inputs) * 0.5


@fault("AUDIT-05", "gradient")
class WrongSign(GymTrainer):
    """The loss is maximised."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return -super()._compute_loss(model, inputs)


@fault("AUDIT-05", "gradient", resembles="Goekdeniz-Guelmez/mlx-lm-lora #55")
class GradientOfOneRow(GymTrainer):
    """All rows but the first lose their gradient."""

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        logps, *others = super()._get_per_token_logps_and_entropies(*arguments, **named)
        return (torch.cat([logps[:1], logps[1:].detach()]), *others)


@fault("AUDIT-05", "gradient", resembles="huggingface/trl #3021")
class OtherLossType(GymTrainer):
    """Each row's loss is a mean of its own, where all tokens were to count alike."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.loss_type, configured = "grpo", self.loss_type
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.loss_type = configured


@fault("AUDIT-05", "gradient", resembles="huggingface/trl #5619", settings=TWO_PASSES)
class NormalisedByPass(GymTrainer):
    """Every pass is divided by its own tokens, not by those of the whole step."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        own = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
        return super()._compute_loss(model, {**inputs, "num_items_in_batch": own})


@fault("AUDIT-05", "gradient", settings=TWO_PASSES)
class LastPassAlone(GymTrainer):
    """Gradients are cleared between the passes of a step."""

    def training_step(self, model: Any, *arguments: Any, **named: Any) -> Any:
        model.zero_grad()
        return super().training_step(model, *arguments, **named)


@fault("AUDIT-05", "gradient", resembles="huggingface/trl #4976", settings=TRUNCATING)
class TruncatedInTheDenominator(GymTrainer):
    """Rollouts that a budget ended are left out of the loss, and still count in what it is divided by."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = super()._generate(prompts)
        self._all_sampled = sum(map(sum, made[2]))
        return made

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._compute_loss(model, {**inputs, "num_items_in_batch": torch.tensor(float(self._all_sampled))})


@fault("AUDIT-05", "gradient")
class HiddenEntropyMask(GymTrainer):
    """Only the tenth of tokens with the highest entropy is trained, which nobody configured."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.top_entropy_quantile = 0.1
        return super()._compute_loss(model, inputs)


class _Beta(GymTrainer):
    def _other(self, beta: float) -> float:
        raise NotImplementedError

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        configured, self.beta = self.beta, self._other(self.beta)
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.beta = configured


@fault("AUDIT-05", "gradient", settings=KL)
class KlSign(_Beta):
    """The policy is pushed away from its reference."""

    def _other(self, beta: float) -> float:
        return -beta


@fault("AUDIT-05", "gradient", settings=KL)
class KlForgotten(_Beta):
    """The KL term is configured, reported, and not in the loss."""

    def _other(self, beta: float) -> float:
        return beta * 1e-12


@fault("AUDIT-05", "gradient", settings=TWO_ITERATIONS)
class RatioForgotten(GymTrainer):
    """The second step on a batch takes the ratio against itself, so that nothing is ever clipped."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._compute_loss(model, {**inputs, "old_per_token_logps": None})


@fault("AUDIT-06", "old log-probabilities", settings=TWO_ITERATIONS)
class RatioToTheReference(GymTrainer):
    """The ratio is taken against the policy as it was before training."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        model: Any = self.accelerator.unwrap_model(self.model)
        with torch.no_grad(), model.disable_adapter():
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
            kept = output["completion_ids"].size(1)
            old = self._get_per_token_logps_and_entropies(self.model, ids, mask, kept)[0]
        return {**output, "old_per_token_logps": old}


@fault("AUDIT-06", "reference", resembles="huggingface/trl #3194", settings=KL)
class WrongReference(GymTrainer):
    """The KL is taken against another model than the one that training began with."""

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        made = super()._get_per_token_logps_and_entropies(*arguments, **named)
        return made if torch.is_grad_enabled() else (made[0] - 1e-6, *made[1:])


@fault("AUDIT-06", "reference", settings=KL)
class ReferenceFollows(GymTrainer):
    """The reference is the present policy, so that its KL is always 0 and holds nothing back."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        model: Any = self.accelerator.unwrap_model(self.model)
        model.disable_adapter = nullcontext
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            del model.disable_adapter
