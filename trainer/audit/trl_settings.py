"""What a TRL trainer is set to do, as far as the audit must know it, and what of it cannot be audited."""

from typing import cast

import torch
from accelerate import DistributedType
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.harness.records.trace import Objective, Sampling
from gymqual.trainer.audit.grpo_oracle import LOSS_TYPES
from gymqual.trainer.policy.transcripts import token_id
from gymqual.trainer.runs.errors import AuditError

REPLICATED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def objective_of(trainer: GRPOTrainer) -> Objective:
    """Return what a trainer's loss is made of; raises AuditError for what is not audited."""
    args = cast(GRPOConfig, trainer.args)
    refused = {
        "use_vllm": trainer.use_vllm,
        "use_transformers_continuous_batching": trainer.use_transformers_continuous_batching,
        "rollout_func": trainer.rollout_func is not None,
        "fp16": args.fp16,
        "use_liger_kernel": args.use_liger_kernel,
        "top_entropy_quantile below 1": args.top_entropy_quantile < 1.0,
        "off_policy_mask_threshold": args.off_policy_mask_threshold is not None,
        "an entropy bonus": trainer._entropy_bonus_enabled,
        # Each process must hold the whole model, as DistributedDataParallel has it.
        f"distributed training of type {trainer.accelerator.distributed_type.value}": (
            trainer.accelerator.distributed_type not in REPLICATED
        ),
        "importance_sampling_level sequence": trainer.importance_sampling_level != "token",
        "multi_objective_aggregation other than sum_then_normalize": (
            trainer.multi_objective_aggregation != "sum_then_normalize"
        ),
        f"loss_type {trainer.loss_type}": trainer.loss_type not in LOSS_TYPES,
        "dropout": any(
            isinstance(m, torch.nn.Dropout) and m.p > 0 for m in cast(torch.nn.Module, trainer.model).modules()
        ),
    }
    found = [name for name, present in refused.items() if present]
    if found:
        raise AuditError("configuration", f"not audited: {', '.join(found)}")
    return Objective(
        loss_type=trainer.loss_type,
        scale_rewards=str(trainer.scale_rewards),
        beta=trainer.beta,
        epsilon_low=trainer.epsilon_low,
        epsilon_high=trainer.epsilon_high,
        delta=args.delta,
        importance_sampling_level=trainer.importance_sampling_level,
        kl_bias_correction=args.use_bias_correction_kl,
        num_iterations=trainer.num_iterations,
        steps_per_generation=cast(int, args.steps_per_generation),
        gradient_accumulation=args.gradient_accumulation_steps,
        processes=trainer.accelerator.num_processes,
        group_size=cast(int, trainer.num_generations),
        max_completion_tokens=cast(int, trainer.max_completion_length),
        mask_truncated=trainer.mask_truncated_completions,
        reward_weights=dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)),
    )


def ends_of(trainer: GRPOTrainer) -> set[int]:
    """Return the ids that a completion may end with: a turn's end, or padding."""
    return {token_id(value) for value in (*trainer.eos_token_ids, trainer._tokenizer.pad_token_id)}


def require_agreeing(sampling: Sampling, temperature: float) -> None:
    """Raise AuditError unless the loss, at this temperature, is taken of the distribution that is drawn from."""
    wanted = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    differing = {name: getattr(sampling, name) for name, value in wanted.items() if getattr(sampling, name) != value}
    if differing:
        detail = f"{differing} while the loss is taken at {wanted}: sampler and trainer cannot agree"
        raise AuditError("sampling", detail)
