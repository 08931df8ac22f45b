"""A run's configuration as TRL's arguments."""

from pathlib import Path

import torch
from trl.trainer.grpo_config import GRPOConfig

from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.runs.config import TrainingConfig


def rows_per_pass(config: TrainingConfig, processes: int) -> int:
    """Return the rows of one forward pass in one process; raises HarnessError if a step is not equal passes."""
    rollouts, passes = config.groups_per_step * config.group_size, config.gradient_accumulation * processes
    if rollouts % passes:
        raise HarnessError(
            f"{rollouts} rollouts of a step are not equal parts for {processes} processes of "
            f"{config.gradient_accumulation} passes; change groups_per_step, gradient_accumulation or the processes"
        )
    return rollouts // passes


def trl_arguments(config: TrainingConfig, folder: Path, rows: int) -> GRPOConfig:
    """Return TRL's arguments of a run: its files go to ``folder``, ``rows`` to a forward pass of a process."""
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=config.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=config.gradient_accumulation,
        steps_per_generation=config.steps_per_generation,
        num_iterations=config.num_iterations,
        mask_truncated_completions=config.mask_truncated,
        num_generations=config.group_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=config.max_gradient_norm,
        loss_type=config.loss_type,
        scale_rewards=config.scale_rewards,
        beta=config.beta,
        reward_weights=[1.0, 0.0],
        temperature=config.temperature,
        # Nothing is cut off: the distribution that is drawn from is the one that the loss is taken of.
        top_k=0,
        top_p=1.0,
        max_completion_length=config.max_completion_tokens,
        max_tool_calling_iterations=config.max_tool_rounds,
        shuffle_dataset=config.shuffle,
        bf16=config.precision == "bf16",
        gradient_checkpointing=False,
        # Every adapter tensor is in every forward pass.
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
        seed=config.seed,
        # What is to be continued exactly must repeat exactly.
        full_determinism=torch.cuda.is_available() and config.checkpoint_every > 0,
        logging_steps=1,
        report_to="none",
        save_strategy="steps" if config.checkpoint_every else "no",
        save_steps=max(1, config.checkpoint_every),
        disable_tqdm=True,
    )
