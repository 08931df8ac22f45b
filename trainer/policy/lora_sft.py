"""Supervised start of a policy that can already write: LoRA on teacher transcripts, merged into its weights.

The loss is the mean over the assistant's tokens of a batch. Rows are taken one at a time: no padding, and a
batch needs no more memory than its longest row.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import PreTrainedModel, get_cosine_with_min_lr_schedule_with_warmup

from gymqual.gyms.base import TaskSet
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.policy.transcripts import Tokens, encode_turns, teacher_messages, tool_schemas


@dataclass(frozen=True)
class LoraRecipe:
    """How a policy is tuned. Every transcript is seen once."""

    seed: int = 0
    steps: int = 24
    batch: int = 4
    """Transcripts a step."""
    rank: int = 16
    alpha: int = 32
    """LoRA's output is scaled by alpha / rank."""
    lr: float = 1e-3
    """AdamW; it falls to a tenth along a cosine."""


def tune(
    policy: Policy, recipe: LoraRecipe, tasks: TaskSet, say: Callable[[str], None]
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """Return the tuned model and one row a step; deterministic given seed, thread count and library versions.

    Raises HarnessError if the loss is not finite.
    """
    torch.manual_seed(recipe.seed)
    adapter = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft asks transformers in a way that will be removed; nothing to do about it here.
        warnings.simplefilter("ignore", FutureWarning)
        model: Any = get_peft_model(policy.model, adapter)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.lr, weight_decay=0.0)
    schedule = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, num_warmup_steps=0, num_training_steps=recipe.steps, min_lr_rate=0.1
    )
    schemas, rows = tool_schemas(tasks), []
    for step in range(1, recipe.steps + 1):
        first = (step - 1) * recipe.batch
        batch = [
            encode_turns(policy.tokenizer, teacher_messages(tasks, f"v1/sft/{recipe.seed}/{index}"), schemas)
            for index in range(first, first + recipe.batch)
        ]
        count, loss = sum(sum(tokens.mask) for tokens in batch), 0.0
        for tokens in batch:
            share = _summed_loss(model, tokens) / count
            share.backward()
            loss += share.item()
        if not math.isfinite(loss):
            raise HarnessError(f"the loss is {loss} at step {step}; lower the learning rate or check the policy")
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        rows.append({"step": step, "loss": loss, "gradient_norm": norm, "tokens": count})
        say(f"step {step}/{recipe.steps}: loss {loss:.3f}")
    return model.merge_and_unload().eval(), rows


def _summed_loss(model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the summed cross-entropy of the assistant's tokens of one transcript, nats."""
    ids = torch.tensor([tokens.ids], device=model.device)
    positions = torch.tensor(tokens.mask, device=model.device).nonzero().squeeze(1)
    # Logits of those positions alone: the vocabulary is most of what a small model computes.
    logits = model(input_ids=ids, logits_to_keep=positions - 1, use_cache=False).logits[0].float()
    return functional.cross_entropy(logits, ids[0, positions], reduction="sum")
