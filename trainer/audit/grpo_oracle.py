"""GRPO's objective a second time: advantages from rewards and groups, and the loss row by row, without padding.

Written from the definitions in TRL's documentation of ``GRPOConfig`` (loss_type, scale_rewards, beta, epsilon) and
the papers named there, for what this product trains with; another loss type is refused when it is attached to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gymqual.harness.records.trace import Objective, Oracle, Row

LOSS_TYPES = ("dapo", "grpo", "bnpo", "dr_grpo")
SMALL = 1e-4
"""TRL's guard of the division by a standard deviation."""


def weighted(rewards: Sequence[dict[str, float | None]], weights: dict[str, float]) -> list[float | None]:
    """Return the weighted reward of every rollout; None where no column holds one."""
    totals: list[float | None] = []
    for row in rewards:
        given = {name: value for name, value in row.items() if value is not None}
        totals.append(sum(weights[name] * value for name, value in given.items()) if given else None)
    return totals


def advantages(rewards: Sequence[float | None], objective: Objective) -> list[float]:
    """Return the advantage of every rollout; groups are consecutive. A rollout without reward has none."""
    values = torch.tensor([float("nan") if reward is None else reward for reward in rewards], dtype=torch.float64)
    groups = values.view(-1, objective.group_size)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if objective.scale_rewards == "group":
        centred = centred / (_spread(groups, dim=1) + SMALL)
    elif objective.scale_rewards == "batch":
        centred = centred / (_spread(values, dim=0) + SMALL)
    return torch.nan_to_num(centred, nan=0.0).flatten().tolist()


def _spread(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the unbiased standard deviation of what is a number."""
    present = ~values.isnan()
    mean = values.nanmean(dim=dim, keepdim=True)
    squares = torch.where(present, (values - mean) ** 2, 0.0).sum(dim=dim, keepdim=True)
    count = present.sum(dim=dim, keepdim=True)
    return torch.where(count > 1, (squares / (count - 1).clamp(min=1)).sqrt(), 0.0)


@dataclass(frozen=True)
class TrainedRow:
    """A row as one forward pass of the loss used it."""

    row: Row
    pass_rows: int
    """Rows of that pass."""
    pass_tokens: int
    """Trained tokens of that pass."""
    generation_tokens: int
    """Trained tokens of the generation batch that the row belongs to, over all processes."""


def row_weight(trained: TrainedRow, objective: Objective) -> float:
    """Return what one token's loss of this row counts in the loss of its optimizer step, over all processes."""
    accumulated = objective.gradient_accumulation
    own = max(1, sum(trained.row.mask))
    # Gradients are averaged over processes; dapo's window is that of all of them already.
    passes = accumulated * objective.processes
    match objective.loss_type:
        case "dapo":
            window = max(1, trained.generation_tokens) * accumulated / objective.steps_per_generation
            return 1.0 / window
        case "grpo":
            return 1.0 / own / trained.pass_rows / passes
        case "bnpo":
            return 1.0 / max(1, trained.pass_tokens) / passes
        case "dr_grpo":
            return 1.0 / (trained.pass_rows * objective.max_completion_tokens) / passes
    raise ValueError(f"loss type {objective.loss_type} has no oracle")


def logprobs_of(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """Return the log-probability of every completion id of a row, by a forward pass of the row alone; float32."""
    device = next(model.parameters()).device
    ids = torch.tensor([row.prompt + row.completion], device=device)
    logits = model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1]
    drawn = torch.tensor(row.completion, device=device).unsqueeze(1)
    return torch.log_softmax(logits.float() / temperature, dim=-1).gather(1, drawn).squeeze(1)


def row_loss(logprobs: torch.Tensor, row: Row, objective: Objective) -> torch.Tensor:
    """Return the summed token loss of a row, before any normaliser."""
    mask = torch.tensor(row.mask, device=logprobs.device, dtype=logprobs.dtype)
    old = logprobs.detach() if row.old_logprobs is None else logprobs.new_tensor(row.old_logprobs)
    ratio = importance = torch.exp(logprobs - old)
    clipped = ratio.clamp(1 - objective.epsilon_low, 1 + objective.epsilon_high)
    if objective.delta is not None:
        ratio = ratio.clamp(max=objective.delta)
    loss = -torch.minimum(ratio * row.advantage, clipped * row.advantage)
    if objective.beta and row.reference_logprobs is not None:
        behind = logprobs.new_tensor(row.reference_logprobs) - logprobs
        kl = torch.exp(behind) - behind - 1
        loss = loss + objective.beta * (kl * importance if objective.kl_bias_correction else kl)
    return (loss * mask).sum()


def gradient(
    model: Any, rows: Sequence[TrainedRow], objective: Objective, temperature: float, autocast: Any
) -> dict[str, torch.Tensor]:
    """Return the gradient of one optimizer step's loss by trainable tensor, float64 on the CPU."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = {name: torch.zeros(parameter.shape, dtype=torch.float64) for name, parameter in named}
    for trained in rows:
        # A row without advantage and KL has no gradient; its forward pass would be for nothing.
        if not trained.row.advantage and not objective.beta:
            continue
        with autocast():
            loss = row_loss(logprobs_of(model, trained.row, temperature), trained.row, objective)
        loss = loss * row_weight(trained, objective)
        for (name, _), part in zip(
            named, torch.autograd.grad(loss, [p for _, p in named], allow_unused=True), strict=True
        ):
            if part is not None:
                total[name] += part.detach().cpu().double()
    return total


def noise(
    model: Any, rows: Sequence[TrainedRow], objective: Objective, temperature: float, autocast: Any, nats: float
) -> float:
    """Return how far two gradients may lie apart because log-probabilities are only known to ``nats``.

    What is left of a KL term near its reference is a difference of nearly equal numbers: where no reward differs, the
    whole gradient may be of the size of its rounding.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = 0.0
    for trained in rows:
        with autocast():
            logprobs = logprobs_of(model, trained.row, temperature)
            score = (logprobs * logprobs.new_tensor(trained.row.mask)).sum() * row_weight(trained, objective)
        parts = torch.autograd.grad(score, parameters, allow_unused=True)
        norm = sum((part.double() ** 2).sum().item() for part in parts if part is not None) ** 0.5
        total += norm * nats * (objective.beta + abs(trained.row.advantage))
    return total


def distance(oracle: Oracle) -> float:
    """Return the norm of the difference of the two gradients that were compared."""
    product = (oracle.cosine or 0.0) * oracle.trainer_norm * oracle.oracle_norm
    return max(0.0, oracle.trainer_norm**2 + oracle.oracle_norm**2 - 2 * product) ** 0.5


def compare(trainers: dict[str, torch.Tensor], oracles: dict[str, torch.Tensor]) -> Oracle:
    """Compare two gradients over all tensors together."""
    product = sum((trainers[name] * oracles[name]).sum().item() for name in oracles)
    trainer_norm = sum((trainers[name] ** 2).sum().item() for name in oracles) ** 0.5
    oracle_norm = sum((oracles[name] ** 2).sum().item() for name in oracles) ** 0.5
    both = trainer_norm > 0 and oracle_norm > 0
    return Oracle(
        cosine=product / (trainer_norm * oracle_norm) if both else None,
        norm_ratio=trainer_norm / oracle_norm if both else None,
        trainer_norm=trainer_norm,
        oracle_norm=oracle_norm,
    )
