"""The gradient of one frozen batch by TRL's trainer, however the batch is split; run under ``torchrun`` for several."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import PrinterCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.trainer.audit.grpo_oracle import LOSS_TYPES
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.distributed import joined, part

ACCUMULATIONS = (1, 2, 4, 8)
GROUP = 4
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Frozen:
    """One rollout of the batch, and what it is paid."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    """1 on sampled ids."""
    reward: float


def adapted() -> Any:
    """Return mini4 with an adapter that is not that of a fresh run: its B is not zero, so that A has gradients, too."""
    set_seed(7)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(load_policy("mini4").model, lora)


def gradient(batch: Sequence[Frozen], loss_type: str, accumulation: int) -> Gradients:
    """Return the gradient of one step over all processes, by trainable tensor; raises ValueError for unequal parts."""
    ranks, taken = joined(), Gradients()
    rows = len(batch) // (ranks.count * accumulation)

    class Noting(GRPOTrainer):
        def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*arguments, **named)
            if self.accelerator.sync_gradients:
                model = self.accelerator.unwrap_model(self.model)
                taken.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
            return loss

    def frozen(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        own = batch[ranks.rank * len(prompts) :][: len(prompts)]
        told = {name: [getattr(row, name) for row in own] for name in ("prompt", "completion", "mask", "reward")}
        return {
            "prompt_ids": told["prompt"],
            "completion_ids": told["completion"],
            "env_mask": told["mask"],
            "logprobs": None,  # type: ignore[dict-item]
            "paid": told["reward"],
        }

    policy = load_policy("mini4")
    with tempfile.TemporaryDirectory(prefix="gymqual-invariance-") as folder:
        trainer = Noting(
            model=adapted(),
            processing_class=policy.tokenizer,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=1,
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=accumulation,
                num_generations=GROUP,
                loss_type=loss_type,
                max_grad_norm=0.0,
                shuffle_dataset=False,
                bf16=False,
                gradient_checkpointing=False,
                ddp_find_unused_parameters=False,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            # What is asked does not matter: the rollouts are there already.
            train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(batch) // GROUP)]),
            reward_funcs=_paid,
            rollout_func=frozen,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return taken


def _paid(paid: list[float | None], **columns: Any) -> list[float | None]:
    return paid


def apart(one: Gradients, other: Gradients) -> float:
    """Return the norm of the difference of two gradients over that of the second; 0 to 2 for equal norms."""
    if one.keys() != other.keys():
        return float("inf")
    distance = sum(((one[name].double() - other[name].double()) ** 2).sum().item() for name in other) ** 0.5
    return distance / sum((value.double() ** 2).sum().item() for value in other.values()) ** 0.5


def write_batch(batch: Sequence[Frozen], path: Path) -> None:
    """Write a batch for other processes to read."""
    path.write_text(json.dumps([asdict(row) for row in batch]))


def name_of(loss_type: str, processes: int, accumulation: int) -> str:
    """Return the name of the file that holds a gradient."""
    return f"{loss_type}-{processes}-{accumulation}.pt"


def main(batch: str, out: str) -> int:
    """Write the gradient of every loss type and number of passes in as many processes as this one is among."""
    torch.set_num_threads(1)
    rows = [Frozen(**row) for row in json.loads(Path(batch).read_text())]
    ranks = joined()
    for loss_type in sorted(LOSS_TYPES):
        for accumulation in ACCUMULATIONS:
            if len(rows) % (ranks.count * accumulation) == 0:
                made = gradient(rows, loss_type, accumulation)
                if ranks.is_first:
                    torch.save(made, Path(out) / name_of(loss_type, ranks.count, accumulation))
    part()
    return 0
