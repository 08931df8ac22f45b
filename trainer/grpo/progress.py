"""What is seen of a training while it goes on, and how it is ended early."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from gymqual.trainer.audit.attach import Audit


def progress_on(console: Console) -> Progress:
    """Return a bar that goes away once it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


class StepLines(TrainerCallback):
    """A line and a tick of the bar for every optimizer step."""

    def __init__(self, audit: Audit, progress: Progress, steps: int) -> None:
        self._audit = audit
        self._progress = progress
        self._bar = progress.add_task("training", total=steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Show the step that has just been audited."""
        step = self._audit.steps[-1]
        line = f"step {step.step}: strict {step.strict:.2f}, reward {step.reward or 0.0:.3f}"
        line += f", gradient {step.gradient_norm:.3g}, gap {step.logprob_gap_max or 0.0:.1e}"
        self._progress.console.print(line + (f", {step.nothing_to_learn}" if step.nothing_to_learn else ""))
        self._progress.advance(self._bar)


class StopAfter(TrainerCallback):
    """Ends a run early, and with a checkpoint; the schedule stays that of all its steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Ask for the checkpoint and the end."""
        if state.global_step >= self._step:
            control.should_save = control.should_training_stop = True
