"""Defects of the trainer: each a small patch on a real TRL run, each what a real stack got wrong.

Those that an audit stops are in ``faults``; these leave a run that completes and looks well.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from peft import PeftModel
from transformers import TrainerCallback

from gymqual.gyms.base import InfrastructureError, Observation, Verdict
from gymqual.gyms.blocking import BlockingGym, BlockingSession
from gymqual.harness.process.owner import Owner
from gymqual.trainer.audit import attach
from gymqual.trainer.audit.optimizer_oracle import OptimizerOracle
from gymqual.trainer.grpo import trainer as grpo
from gymqual.trainer.grpo.environment import GymEnvironment
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.runs import checkpoints, open_gym
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import TrainingConfig
from gymqual.trainer.runs.manifest import ADAPTER, INITIAL_ADAPTER, TrainingRun

_arguments, _call, _write, _init = grpo.trl_arguments, BlockingSession.call, run_manifest.write, GymTrainer.__init__


def one_task_over_and_over(patch: pytest.MonkeyPatch) -> None:
    """A data loader that starts anew at every step: TRL's own sampler does so on resume."""

    def init(self: GymTrainer, config: TrainingConfig, *arguments: Any, **named: Any) -> None:
        repeated = config.model_copy(update={"tasks": config.tasks[:1] * len(config.tasks)})
        _init(self, repeated, *arguments, **named)

    patch.setattr(GymTrainer, "__init__", init)


def a_hidden_kl_term(patch: pytest.MonkeyPatch) -> None:
    """A default of the trainer that the configuration does not name."""

    def arguments(config: TrainingConfig, folder: Path, rows: int) -> Any:
        made = _arguments(config, folder, rows)
        made.beta = 0.05
        return made

    patch.setattr(grpo, "trl_arguments", arguments)


class _ForgetOneTensor(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        trainable = [parameter for parameter in named["model"].parameters() if parameter.requires_grad]
        trainable[5].grad = None


def one_tensor_is_never_updated(patch: pytest.MonkeyPatch) -> None:
    """A tensor that is left out of the optimizer, and an audit that leaves the optimizer alone."""

    def init(self: GymTrainer, *arguments: Any, **named: Any) -> None:
        _init(self, *arguments, **named)
        self.add_callback(_ForgetOneTensor())

    patch.setattr(GymTrainer, "__init__", init)
    for step in ("before", "after"):
        patch.setattr(OptimizerOracle, step, lambda self, *arguments: None)


def the_oracle_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """The audit that costs most is switched off."""
    patch.setattr(TrainingConfig, "oracle_at", lambda self, step: False)


def external_tokens_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Totals that leave out what is not trained."""

    def init(self: attach.Audit, *arguments: Any, **named: Any) -> None:
        _audit_init(self, *arguments, **named)
        self.tokens = _NoExternal(self.tokens)

    _audit_init = attach.Audit.__init__
    patch.setattr(attach.Audit, "__init__", init)


class _NoExternal(dict[str, int]):
    def __setitem__(self, name: str, value: int) -> None:
        super().__setitem__(name, 0 if name == "external" else value)


def observations_are_rewritten(patch: pytest.MonkeyPatch) -> None:
    """An adapter that pads what the gym shows, to be kind to a template."""

    def call(self: BlockingSession, tool: str, arguments: str) -> Observation:
        seen = _call(self, tool, arguments)
        return Observation(f"{seen.text} ", seen.is_error)

    patch.setattr(BlockingSession, "call", call)


def the_initial_adapter_is_saved(patch: pytest.MonkeyPatch) -> None:
    """Weights that are saved before they are trained."""

    def save(self: PeftModel, folder: Path, *arguments: Any, **named: Any) -> None:
        if Path(folder).name == ADAPTER:
            copytree(Path(folder).with_name(INITIAL_ADAPTER), folder)
        else:
            _save(self, str(folder), *arguments, **named)

    _save = PeftModel.save_pretrained
    patch.setattr(PeftModel, "save_pretrained", save)


def the_manifest_claims_more(patch: pytest.MonkeyPatch) -> None:
    """A figure that is improved when it is written."""

    def write(run: TrainingRun, folder: Path) -> Path:
        return _write(run.model_copy(update={"varied_groups": run.varied_groups + 1}), folder)

    patch.setattr(run_manifest, "write", write)


def sessions_are_left_open(patch: pytest.MonkeyPatch) -> None:
    """TRL never closes an environment; a trainer that relies on it leaves its sessions to the server."""

    class Forgetful(Owner):
        def close(self) -> None:
            """Leave it to the end of the process."""

    patch.setattr(GymTrainer, "close_environments", lambda self: None)
    patch.setattr(BlockingGym, "close", lambda self: None)
    # A bridge that ends takes its sessions with it.
    patch.setattr(open_gym, "Owner", Forgetful)


def the_buffer_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Rollouts that were still to be trained are drawn anew after a resume, as by TRL itself."""
    patch.setattr(checkpoints, "load_buffer", lambda trainer, folder: None)


def a_lost_rollout_is_worth_zero(patch: pytest.MonkeyPatch) -> None:
    """NeMo Gym #2552: an infrastructure failure enters the group as reward 0."""

    def verify(self: GymEnvironment, answer: str | None, truncated: bool = False) -> Verdict:
        try:
            return _verify(self, answer, truncated)
        except (InfrastructureError, AssertionError):
            # It may not even have a session.
            self._verdict = Verdict(0.0, False, {"lookup": 0.0, "calculation": 0.0, "answer": 0.0}, "no_answer")
            return self._verdict

    def reset(self: GymEnvironment, **row: Any) -> None:
        with suppress(InfrastructureError):
            _reset(self, **row)

    _verify, _reset = GymEnvironment._verify, GymEnvironment.reset
    patch.setattr(GymEnvironment, "_verify", verify)
    patch.setattr(GymEnvironment, "_raise_fault", lambda self: None)
    patch.setattr(GymEnvironment, "reset", reset)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        one_task_over_and_over,
        a_hidden_kl_term,
        one_tensor_is_never_updated,
        the_oracle_is_skipped,
        external_tokens_are_not_counted,
        observations_are_rewritten,
        the_initial_adapter_is_saved,
        the_manifest_claims_more,
        sessions_are_left_open,
        a_lost_rollout_is_worth_zero,
        the_buffer_is_lost,
    )
}
