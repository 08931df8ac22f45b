"""Bugs of the optimizer step: clipping, learning rate, weights that are not updated or that should not be."""

from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from transformers import TrainerCallback

from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.runs.manifest import ADAPTER, INITIAL_ADAPTER


class _Called(GymTrainer):
    """A trainer that is its own callback, ahead of all others."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.callback_handler.callbacks.insert(0, _Hooks(self))

    def _begun(self, args: Any) -> None:
        """Do something when training begins."""

    def _before_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Do something between clipping and the optimizer's step."""

    def _after_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Do something after the optimizer's step."""


class _Hooks(TrainerCallback):
    def __init__(self, trainer: _Called) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._trainer._begun(args)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._trainer._before_step([p for p in named["model"].parameters() if p.requires_grad])

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._trainer._after_step([p for p in named["model"].parameters() if p.requires_grad])


def _made(optimizer: Any) -> torch.optim.Optimizer:
    assert optimizer is not None
    return optimizer


@fault("AUDIT-09", "clipping", "update")
class OneTensorForgotten(_Called):
    """One tensor of the adapter never gets its update."""

    def _before_step(self, parameters: Any) -> None:
        parameters[5].grad = None


@fault("AUDIT-09", "learning rate", "update")
class LearningRateGone(_Called):
    """The schedule ends after the first step: the learning rate is 0 from then on."""

    def _after_step(self, parameters: Any) -> None:
        for group in _made(self.optimizer).param_groups:
            # What the schedule multiplies, and what the next step takes.
            group["initial_lr"] = group["lr"] = 0.0
        schedule: Any = self.lr_scheduler
        schedule.base_lrs = [0.0 for _ in schedule.base_lrs]


@fault("AUDIT-09", "clipping", "update")
class ClippedToNothing(_Called):
    """The gradient is clipped to next to nothing."""

    def _begun(self, args: Any) -> None:
        args.max_grad_norm = 1e-10


@fault("AUDIT-09", "clipping", "update", settings={"max_gradient_norm": 0.05})
class NotClipped(_Called):
    """Clipping is configured and not done."""

    def _begun(self, args: Any) -> None:
        args.max_grad_norm = 0


@fault("AUDIT-09", "update")
class HiddenWeightDecay(_Called):
    """The optimizer decays weights, which nobody configured: tensors change without a gradient."""

    def _begun(self, args: Any) -> None:
        for group in _made(self.optimizer).param_groups:
            group["weight_decay"] = 0.1


@fault("AUDIT-09", "update")
class OptimizerForgets(_Called):
    """The optimizer's moments are lost after every step."""

    def _after_step(self, parameters: Any) -> None:
        _made(self.optimizer).state.clear()


@fault("AUDIT-09", "update", resembles="pytorch/ao #1124")
class UpdatesRoundedAway(_Called):
    """The adapter is kept in bf16, where most of an update is rounded away."""

    @torch.no_grad()
    def _after_step(self, parameters: Any) -> None:
        for parameter in parameters:
            parameter.copy_(parameter.bfloat16())


@fault("AUDIT-09", "frozen")
class BaseTrained(GymTrainer):
    """A part of the base model is trained beside the adapter."""

    def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
        for name, parameter in self.accelerator.unwrap_model(self.model).named_parameters():
            if name.endswith("norm.weight"):
                parameter.requires_grad_(True)
        return super().create_optimizer(*arguments, **named)


@fault("AUDIT-09", "frozen")
class BaseTouched(_Called):
    """A weight of the base model moves, though no gradient reaches it."""

    @torch.no_grad()
    def _after_step(self, parameters: Any) -> None:
        frozen = next(p for p in self.accelerator.unwrap_model(self.model).parameters() if not p.requires_grad)
        frozen.view(-1)[0] += 1e-3


@fault("AUDIT-05", "gradient", resembles="Goekdeniz-Guelmez/mlx-lm-lora #55")
class NeverUnmerged(GymTrainer):
    """The adapter is merged for sampling and never taken out again: no gradient reaches it from then on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        model: Any = self.model
        # As gradient checkpointing does, so that a loss without a gradient is no error.
        model.enable_input_require_grads()

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        model: Any = self.accelerator.unwrap_model(self.model)
        if not self.state.global_step:
            model.merge_adapter()
        return super()._generate_single_turn(*arguments, **named)


@fault("TRAIN-07", claims=("policies",), resembles="PrimeIntellect-ai/prime-rl #1707")
class AdapterNeverSaved(GymTrainer):
    """What is saved at the end is the adapter as it was at the beginning."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        model: Any = self.model
        save = model.save_pretrained

        def save_the_first(folder: Path, *others: Any, **known: Any) -> None:
            if Path(folder).name == ADAPTER:
                copytree(Path(folder).with_name(INITIAL_ADAPTER), folder)
            else:
                save(folder, *others, **known)

        model.save_pretrained = save_the_first
