"""What goes wrong where several processes train together; each is planted in one of them, or in all.

Run as a module it is one of these processes.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.gyms.base import InfrastructureError, Kind, Scope
from gymqual.gyms.local import LocalGym


def one_sampler_for_all(rank: int) -> None:
    """Every process samples with the same random numbers: the seed is not made the process's own."""
    module: Any = grpo_trainer
    original = module.set_seed
    module.set_seed = lambda seed, device_specific=False: original(seed)


def gradients_stay_apart(rank: int) -> None:
    """Gradients are not averaged: the model is not wrapped."""
    Accelerator.prepare_model = lambda self, model, *args, **named: model  # type: ignore[method-assign]


def divided_by_own_tokens(rank: int) -> None:
    """The loss is divided by this process's tokens, not by those of all."""
    original: Any = GRPOTrainer._compute_loss

    def own(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        return original(self, model, {**inputs, "num_items_in_batch": mask.sum() * self.accelerator.num_processes})

    GRPOTrainer._compute_loss = own  # type: ignore[method-assign]


def one_process_drifts(rank: int) -> None:
    """The second process's weights move by themselves after a step."""
    original: Any = GRPOTrainer._maybe_log_save_evaluate

    def drifting(self: Any, *args: Any, **named: Any) -> Any:
        if rank == 1:
            with torch.no_grad():
                next(p for p in self.model.parameters() if p.requires_grad).add_(1e-3)
        return original(self, *args, **named)

    GRPOTrainer._maybe_log_save_evaluate = drifting  # type: ignore[method-assign]


def one_process_trains_an_observation(rank: int) -> None:
    """The second process's loss mask covers what its model did not write."""
    prepared: Any = GRPOTrainer._prepare_inputs

    def preparing(self: Any, batch: Any) -> Any:
        inputs = prepared(self, batch)
        return {**inputs, "tool_mask": torch.ones_like(inputs["tool_mask"])} if rank == 1 else inputs

    GRPOTrainer._prepare_inputs = preparing  # type: ignore[method-assign]


def one_process_loses_its_gym(rank: int) -> None:
    """The second process's gym is not reached any more after a batch."""
    original: Any = LocalGym.open
    opened = [0]

    def losing(self: Any, task_id: str) -> Any:
        opened[0] += 1
        if rank == 1 and opened[0] > 4:
            raise InfrastructureError(Kind.UNREACHABLE, Scope.SERVICE, "the gym has ended")
        return original(self, task_id)

    LocalGym.open = losing  # type: ignore[method-assign]


def one_process_is_killed(rank: int) -> None:
    """The second process is killed at the second step."""
    original: Any = GRPOTrainer.training_step

    def dying(self: Any, *args: Any, **named: Any) -> Any:
        if rank == 1 and self.state.global_step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *args, **named)

    GRPOTrainer.training_step = dying  # type: ignore[method-assign]


def one_gradient_is_clipped_otherwise(rank: int) -> None:
    """The second process's gradient is doubled before its step; every step that a process takes is told on stderr."""
    clip: Any = Accelerator.clip_grad_norm_
    step: Any = torch.optim.AdamW.step

    def doubling(self: Any, parameters: Any, *args: Any, **named: Any) -> Any:
        listed = list(parameters)
        norm = clip(self, listed, *args, **named)
        for parameter in listed:
            if rank == 1 and parameter.grad is not None:
                parameter.grad.mul_(2)
        return norm

    def telling(self: Any, *args: Any, **named: Any) -> Any:
        print(f"process {rank} takes a step", file=sys.stderr, flush=True)
        return step(self, *args, **named)

    Accelerator.clip_grad_norm_ = doubling  # type: ignore[method-assign]
    torch.optim.AdamW.step = telling  # type: ignore[method-assign]


def nothing(rank: int) -> None:
    """The control."""


DEFECTS: Mapping[str, tuple[Callable[[int], None], str]] = {
    "one_sampler_for_all": (one_sampler_for_all, "stopped: random state: processes 0 and 1"),
    "gradients_stay_apart": (gradients_stay_apart, "stopped: gradient: "),
    "divided_by_own_tokens": (divided_by_own_tokens, "stopped: gradient: "),
    "one_process_drifts": (one_process_drifts, "stopped: processes: process 1 holds other weights"),
    "one_process_trains_an_observation": (one_process_trains_an_observation, "stopped: mask: "),
    "one_process_loses_its_gym": (one_process_loses_its_gym, "stopped: unreachable"),
    "one_process_is_killed": (one_process_is_killed, "another process of the training ended"),
    "one_gradient_is_clipped_otherwise": (one_gradient_is_clipped_otherwise, "stopped: clipping: "),
    "nothing": (nothing, "completed"),
}
"""What is planted, and what the outcome of the run says."""


def main(defect: str, *arguments: str) -> int:
    """Train as the command does, on tasks that are played in this process, with a defect planted in it."""
    from gymqual.__main__ import main as gymqual
    from gymqual.qualification.support.training.small_run import played_here

    DEFECTS[defect][0](int(os.environ["RANK"]))
    with played_here():
        return gymqual(["train", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
