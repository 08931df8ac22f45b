"""Where the time of a training step goes: a clock for each phase, stopped while another phase runs inside of it."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from transformers import TrainerCallback

from gymqual.trainer.audit.attach import Audit
from gymqual.trainer.audit.sampling_recorder import SamplerRecorder
from gymqual.trainer.grpo.environment import GymEnvironment
from gymqual.trainer.grpo.trainer import GymTrainer

PHASES: tuple[str, ...] = (
    "prefill",
    "decode",
    "gym calls",
    "verdict and rewards",
    "loss forward",
    "backward",
    "clipping and optimizer",
    "audit",
    "rest",
)
"""``rest`` is TRL's own: chat template, parsing, padding, advantages, logging."""
OF_TRL = {
    "_calculate_rewards": "verdict and rewards",
    "_compute_loss": "loss forward",
    "_get_per_token_logps_and_entropies": "loss forward",
    "_generate_and_score_completions": "rest",
    "_generate": "rest",
    "_generate_single_turn": "rest",
    "training_step": "rest",
}
"""The trainer's own methods that an audit stands around, and what they are."""
EVENTS = ("on_pre_optimizer_step", "on_step_end")
"""Of the audit, as a callback."""


class Clock:
    """Wall seconds by phase, each without the phases inside of it; of nothing but the steps behind the first."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._open: list[str] = []
        self._since = 0.0

    def begin_step(self) -> None:
        """Begin a step: what is in no other phase from here on is ``rest``."""
        self._open, self._since = ["rest"], _now()

    def end_step(self, first: bool) -> None:
        """End a step; the first warms up, and is not counted."""
        self._book()
        self._open = []
        if first:
            self.seconds = dict.fromkeys(PHASES, 0.0)
        else:
            self.steps += 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside to a phase."""
        if not self._open:
            yield
            return
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now = _now()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts to a phase."""

        def run(*arguments: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **named)

        return run


def _now() -> float:
    if torch.cuda.is_available():
        # Kernels are only queued by the phase that they belong to.
        torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def clocked(trainer: GymTrainer, attach: Callable[[], Audit] | None) -> Iterator[Clock]:
    """Measure a training that begins inside, by phases; ``attach`` attaches its audit, if it has one."""
    clock = Clock()
    made: Any = trainer
    model = made.accelerator.unwrap_model(made.model).get_base_model()
    for name, phase in OF_TRL.items():
        setattr(made, name, clock.timed(phase, getattr(made, name)))
    made.accelerator.backward = clock.timed("backward", made.accelerator.backward)
    made.accelerator.clip_grad_norm_ = clock.timed("clipping and optimizer", made.accelerator.clip_grad_norm_)
    model._prefill = clock.timed("prefill", model._prefill)
    with ExitStack() as stack:
        # Generate takes the method that decodes from the class.
        kind = type(model)
        stack.enter_context(patch.object(kind, "_sample", _method(clock, "decode", kind._sample)))
        for name in ("reset", "_call"):
            timed = _method(clock, "gym calls", getattr(GymEnvironment, name))
            stack.enter_context(patch.object(GymEnvironment, name, timed))
        if attach is not None:
            audit = attach()
            for name in OF_TRL:
                setattr(made, name, clock.timed("audit", getattr(made, name)))
            for name in EVENTS:
                setattr(audit, name, clock.timed("audit", getattr(audit, name)))
            recorded = _method(clock, "audit", SamplerRecorder.__call__)
            stack.enter_context(patch.object(SamplerRecorder, "__call__", recorded))
        made.callback_handler.callbacks.insert(0, _Begins(clock))
        made.add_callback(_Ends(clock))
        yield clock


def _method(clock: Clock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for a class, whose time counts to a phase."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        with clock.phase(phase):
            return function(self, *arguments, **named)

    return method


class _Begins(TrainerCallback):
    """Stands before all others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        optimizer = named["optimizer"]
        optimizer.step = self._clock.timed("clipping and optimizer", optimizer.step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._clock.begin_step()


class _Ends(TrainerCallback):
    """Stands behind all others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._clock.end_step(first=state.global_step == 1)
