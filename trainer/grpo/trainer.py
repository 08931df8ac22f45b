"""TRL's ``GRPOTrainer`` through a gym: its rollouts are the gym's episodes, its reward the gym's verdict.

Native multi-turn, generation by transformers, always with the current policy. Whatever breaks in the gym ends the
run before a reward is made of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from gymqual.gyms.base import TaskSet, Verdict
from gymqual.gyms.blocking import BlockingGym
from gymqual.trainer.audit.attach import Audit, attach
from gymqual.trainer.audit.trl_settings import ends_of
from gymqual.trainer.grpo.arguments import rows_per_pass, trl_arguments
from gymqual.trainer.grpo.environment import AnyTool, GymEnvironment, environment_class
from gymqual.trainer.grpo.episodes import episode_of, final_answer
from gymqual.trainer.grpo.rewards import SHAPED, STRICT, column_named, rewards_of, shaped
from gymqual.trainer.grpo.sampler import Sampler
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.config import TrainingConfig
from gymqual.trainer.runs.distributed import joined, ranks_of
from gymqual.trainer.runs.written import AS_WRITTEN


class EpochSampler(RepeatSampler):
    """TRL's sampler draws an epoch's permutation from where the last one left its generator: after a resume, the first.

    This one seeds it by epoch.
    """

    def set_epoch(self, epoch: int) -> None:
        """Prepare the order of an epoch, counted from 0."""
        if self.shuffle:
            self.generator.manual_seed((self.seed or 0) + epoch)


class GymTrainer(GRPOTrainer):
    """One training run through a gym."""

    seeds_epochs = True
    """The permutation of an epoch follows from seed and epoch alone."""

    def __init__(
        self,
        config: TrainingConfig,
        policy: Policy,
        gym: BlockingGym,
        tasks: TaskSet,
        folder: Path,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        """Prepare a run; TRL's own files go to ``folder``. Training tensors are made from ``config.seed``."""
        self.verdicts: list[Verdict] = []
        self.keep: Callable[[Path], object] = lambda checkpoint: None
        """Adds what else this process must keep to a checkpoint."""
        self.seal: Callable[[Path], object] = lambda checkpoint: None
        """Completes a checkpoint once every process has written its part of it."""
        self.sampler = Sampler(config.generation)
        self._run_folder = folder.parent
        self._shaping = config.shaping
        columns: Any = [column_named(SHAPED, self._shaped), column_named(STRICT, self._strict)]
        super().__init__(
            model=policy.model,
            processing_class=policy.tokenizer,
            args=trl_arguments(config, folder, rows_per_pass(config, joined().count)),
            train_dataset=Dataset.from_list([{"prompt": tasks.prompt(task), "task_id": task} for task in config.tasks]),
            reward_funcs=columns,
            environment_factory=environment_class(gym, tasks),
            peft_config=LoraConfig(
                r=config.lora.rank,
                lora_alpha=config.lora.alpha,
                target_modules=config.lora.targets
                if isinstance(config.lora.targets, str)
                else list(config.lora.targets),
                lora_dropout=0.0,
                task_type="CAUSAL_LM",
            ),
            callbacks=callbacks,
        )

    def _tool_call_loop(self, *arguments: Any, **named: Any) -> Any:
        """Let every call that a model wrote reach its gym: made-up names and arguments that are no object, too."""
        self._sync_tool_dicts = [
            AnyTool(environment, tools)
            for environment, tools in zip(self.environments or [], self._sync_tool_dicts, strict=True)
        ]
        return super()._tool_call_loop(*arguments, **named)

    def _generate(self, prompts: list[Any]) -> Any:
        """Generate a batch; raises the InfrastructureError that TRL has shown to the model as a tool's answer."""
        with _arguments_as_written(), self.sampler.batch(self):
            made = super()._generate(prompts)
        for environment in self.environments or []:
            environment._raise_fault()
        return made

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        """Judge every episode of the batch before a reward is made of any; raises InfrastructureError."""
        ends = ends_of(self)
        self.verdicts = [
            environment._verify(final_answer(messages), truncated=not ids or ids[-1] not in ends)
            for environment, messages, ids in zip(
                self.environments or [], completions, completion_ids_list, strict=True
            )
        ]
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    def _shaped(self, environments: list[GymEnvironment], **columns: Any) -> list[float | None]:
        return [shaped(self._shaping, verdict) for verdict in self.verdicts]

    def _strict(self, environments: list[GymEnvironment], **columns: Any) -> list[float | None]:
        # A rollout without reward has none in any column: TRL would take 0 times a number for its reward.
        return [None if verdict.reward is None else float(verdict.strict) for verdict in self.verdicts]

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Return TRL's sampler, with a permutation of each epoch that does not depend on those before it."""
        sampler: Any = super()._get_train_sampler(dataset)
        sampler.__class__ = EpochSampler
        self._epochs = sampler
        return sampler

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Tell the sampler its epoch: accelerate does not where it shares batches out and skips some, on a resume."""
        if isinstance(self._epochs, EpochSampler):
            self._epochs.set_epoch(named["epoch"])
        super()._run_epoch(*arguments, **named)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save everything that the next step depends on, whole or not at all."""
        step = self.state.global_step

        def write(partial: Path) -> Path:
            self.args.output_dir, kept = str(partial), self.args.output_dir
            try:
                super(GymTrainer, self)._save_checkpoint(model, trial)
            finally:
                self.args.output_dir = kept
            made = partial / f"checkpoint-{step}"
            checkpoints.save_buffer(self, made)
            self.keep(made)
            return made

        checkpoints.save(self._run_folder, step, write, self.seal, ranks_of(self))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Go on with the random numbers, and the rollouts, that the checkpoint was made amid."""
        super()._load_rng_state(checkpoint)
        if checkpoint is not None:
            checkpoints.load_buffer(self, Path(checkpoint))

    def close_environments(self) -> None:
        """Release every session that a slot still holds. Idempotent."""
        for pool in self._environment_pool.values():
            for environment in pool:
                environment._close()


def attach_audit(
    trainer: GymTrainer, config: TrainingConfig, trace: Path, *, stops: bool = True, goes_on: bool = False
) -> Audit:
    """Attach the audit as the configuration has it, episodes, rewards and tasks included; see ``attach``."""
    return attach(
        trainer,
        trace,
        bands=config.bands,
        oracle_at=config.oracle_at,
        episodes=episode_of,
        rewards=rewards_of(config.shaping),
        tasks=config.tasks,
        stops=stops,
        goes_on=goes_on,
    )


@contextmanager
def _arguments_as_written() -> Iterator[None]:
    """Let TRL hand on arguments that are no JSON object, which it would answer itself, past the gym."""
    module: Any = grpo_trainer
    original = module.parse_response

    def parse(*arguments: Any, **named: Any) -> Any:
        parsed = original(*arguments, **named)
        for call in parsed.get("tool_calls") or ():
            function = call.get("function", {})
            if not isinstance(function.get("arguments"), dict):
                function["arguments"] = {AS_WRITTEN: function.get("arguments")}
        return parsed

    module.parse_response = parse
    try:
        yield
    finally:
        module.parse_response = original
