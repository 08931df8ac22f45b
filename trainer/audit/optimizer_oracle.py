"""The optimizer step a second time: clipping, learning rate and AdamW's update, from the gradient of the loss.

Written from the definitions in torch's documentation of ``AdamW`` and ``clip_grad_norm_`` and transformers' schedules,
for what TRL trains with unless told otherwise; another optimizer is not audited, see ``Audit.audits_updates``.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import get_scheduler

from gymqual.trainer.runs.errors import AuditError

Tensors = dict[str, torch.Tensor]
CLIPPING = 1e-3
"""Of 1, relative: how exactly a gradient's clipping is known that is held in single precision."""
HALF = 2**-6
"""The same in half precision, which keeps eight bits."""
SINGLE = 1e-7
"""Relative: what single precision rounds of a weight. Half precision rounds small updates away, and is not excused."""
ADAMW = ("adamw_torch", "adamw_torch_fused")
MEASURED_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
"""Learning rates that follow from what was measured, and not from the arguments alone."""


class OptimizerOracle:
    """Follows every optimizer step of a trainer."""

    def __init__(self, trainer: Any, band: float) -> None:
        args = trainer.args
        # Taken now: what is changed later is another configuration.
        self._learning_rate = args.learning_rate
        self._schedule = (args.lr_scheduler_type, args.lr_scheduler_kwargs)
        self._warmup = args.get_warmup_steps
        self._max_norm = args.max_grad_norm
        self._betas, self._eps = (args.adam_beta1, args.adam_beta2), args.adam_epsilon
        self._decay = args.weight_decay
        self._decayed = set(trainer.get_decay_parameter_names(trainer.model)) if args.weight_decay else set()
        self._band = band
        made_from_arguments = trainer.optimizer is None and trainer.lr_scheduler is None
        by_name = _name(args.optim) in ADAMW and _name(args.lr_scheduler_type) not in MEASURED_SCHEDULES
        self.audited = made_from_arguments and by_name
        """Whether the trainer makes its optimizer from its arguments, and makes one that is followed here."""
        self._rates: Any = None
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._steps: dict[str, int] = {}
        self._before: Tensors = {}
        self._due: Tensors = {}

    def begin(self, step: int, max_steps: int) -> None:
        """Begin a training that has taken ``step`` steps before."""
        if not self.audited:
            return
        held = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self._learning_rate)
        name, settings = self._schedule
        self._rates = get_scheduler(name, held, self._warmup(max_steps), max_steps, settings)
        held.step()
        for _ in range(step):
            self._rates.step()

    def state(self) -> dict[str, Any]:
        """Return moments and step counts, for ``restore``."""
        return {"moments": {name: list(pair) for name, pair in self._moments.items()}, "steps": dict(self._steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the moments of an earlier part of the run: its own, not the optimizer's."""
        self._moments = {name: (mean, square) for name, (mean, square) in state["moments"].items()}
        self._steps = dict(state["steps"])

    def before(self, named: Mapping[str, torch.Tensor], raw: Tensors, optimizer: Any) -> None:
        """Hold clipping and learning rate of a step, from its raw gradient, float64; raises AuditError.

        A tensor that had no gradient, not even zero, is not in ``raw``: an optimizer passes it over.
        """
        norm = sum((value**2).sum().item() for value in raw.values()) ** 0.5
        scale = min(1.0, self._max_norm / (norm + 1e-6)) if self._max_norm else 1.0
        clipped = {name: value * scale for name, value in raw.items()}
        self._before = {name: p.detach().to("cpu", torch.float64, copy=True) for name, p in named.items()}
        rate = self._rates.get_last_lr()[0]
        self._rates.step()
        self._due = self._updates(clipped, rate)
        for name in named.keys() - clipped.keys():
            self._due[name] = torch.zeros_like(self._before[name])
        for name, due in clipped.items():
            held = named[name].grad
            given = torch.zeros_like(due) if held is None else held.detach().cpu().double()
            exact = CLIPPING if named[name].dtype is torch.float32 else HALF
            if (given - due).norm().item() > exact * max(due.norm().item(), 1e-12):
                detail = f"the optimizer gets a gradient of norm {given.norm():.3g} for {name}, {due.norm():.3g} is due"
                raise AuditError("clipping", f"{detail} (norm {norm:.3g}, clipped at {self._max_norm})")
        rates = {group["lr"] for group in optimizer.param_groups}
        if any(abs(each - rate) > 1e-9 * max(1.0, rate) for each in rates):
            raise AuditError("learning rate", f"{sorted(rates)}, its schedule gives {rate:.6g}")

    def _updates(self, gradients: Tensors, rate: float) -> Tensors:
        """Return AdamW's change of every tensor, float64, and keep its moments."""
        first, second = self._betas
        due = {}
        for name, gradient in gradients.items():
            mean, square = self._moments.get(name) or (torch.zeros_like(gradient), torch.zeros_like(gradient))
            # In place: what is asked for anew at every step costs more than the arithmetic.
            mean.mul_(first).add_(gradient, alpha=1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            count = self._steps[name] = self._steps.get(name, 0) + 1
            self._moments[name] = (mean, square)
            spread = (square / (1 - second**count)).sqrt_().add_(self._eps)
            change = (mean / (1 - first**count)).div_(spread)
            if name in self._decayed:
                change.add_(self._before[name], alpha=self._decay)
            due[name] = change.mul_(-rate)
        return due

    def after(self, named: Mapping[str, torch.Tensor]) -> None:
        """Hold the change of every tensor to the one that is due; raises AuditError naming the first that differs."""
        for name, before in self._before.items():
            made, due = named[name].detach().cpu().double() - before, self._due[name]
            apart, length = (made - due).norm().item(), due.norm().item()
            if apart > self._band * length + SINGLE * before.norm().item() + 1e-15:
                detail = f"{name} moved by {made.norm():.3g}, {length:.3g} is due, {apart:.3g} apart"
                raise AuditError("update", detail)


def _name(option: Any) -> str:
    return str(getattr(option, "value", option))
