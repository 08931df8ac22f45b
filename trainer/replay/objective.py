"""What one row is trained on, by its definition: log-probabilities of its completion, and the loss of them."""

import math
from typing import Any

import torch

from gymqual.harness.records.trace import Objective, Row


def completion_logprobs(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """Return the log-probability of every completion id; float32, shape (completion,)."""
    device = next(model.parameters()).device
    ids = torch.tensor([row.prompt + row.completion], device=device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1].float() / temperature
    return -torch.nn.functional.cross_entropy(logits, ids[0, len(row.prompt) :], reduction="none")


def row_loss(objective: Objective, logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the summed token loss of a row: clipped surrogate, and the KL term if there is one."""
    old = logprobs.detach() if row.old_logprobs is None else logprobs.new_tensor(row.old_logprobs)
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - objective.epsilon_low, 1 + objective.epsilon_high)
    surrogate = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
    gain = torch.minimum(surrogate * row.advantage, clipped * row.advantage)
    if objective.beta and row.reference_logprobs is not None:
        log_ratio = logprobs.new_tensor(row.reference_logprobs) - logprobs
        kl = torch.expm1(log_ratio) - log_ratio
        gain = gain - objective.beta * (kl * ratio if objective.kl_bias_correction else kl)
    return -(gain * logprobs.new_tensor(row.mask)).sum()


def sensitivity_of(model: Any, logprobs: torch.Tensor, recorded: list[float], row: Row) -> float:
    """Return the norm of the gradient of the trained log-probability that differs most."""
    differences = (logprobs.detach() - logprobs.new_tensor(recorded)).abs() * logprobs.new_tensor(row.mask)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(logprobs[int(differences.argmax())], parameters, retain_graph=True)
    return math.sqrt(sum(part.double().square().sum().item() for part in parts))
