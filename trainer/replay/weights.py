"""Weights: the training done again from recorded ids, rewards and the initial adapter, row by row without padding.

Needs the policy that was trained. In fp32 every step is repeated, the optimizer's included, so that each step's
forward pass and gradient and the saved adapter are held against weights that the run did not provide. Roundings add up
over steps, so that a run goes on from its own weights at each of its checkpoints, once they are what was done again;
without checkpoints, and in bf16, only so many steps are repeated as are not rounding.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.trace import Step
from gymqual.trainer.replay.evidence import Evidence
from gymqual.trainer.replay.objective import completion_logprobs, row_loss, sensitivity_of
from gymqual.trainer.replay.rounding import rounding_of
from gymqual.trainer.replay.steps import normalisers
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.manifest import ADAPTER, INITIAL_ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS
from gymqual.trainer.runs.tensors import load_adapter, tensors_digest

EMBEDDED = Path(__file__).parents[1] / "policy" / "embedded"
FIRST_PASS = 1e-4
"""Nats, in fp32: the first step's forward pass with and without padding, at the very weights that are on disk."""
LATER_PASS = 1e-3
"""Nats, in fp32: the same after steps that were done again, whose roundings Adam magnifies where gradients vanish."""
LATER_NORM = 2e-3
"""Of 1: gradient norms at weights that were done again, which differ by rounding."""
SAME_ROUNDING = 4.0
"""How many times more rounding may be said to explain than it does, where weights are done again."""
MOST_STEPS = 64
"""Steps in fp32 that are done again one after another; of ``mini`` the first to differ by LATER_NORM was the 114th."""
UPDATE_BAND = 1e-3
"""Of 1: cosine and norm ratio of the adapter's whole update, done again, to the saved one."""


def find_policy(evidence: Evidence, named: Path | None) -> Path | None:
    """Return the folder of the policy that was trained if it is at hand; raises HarnessError for a wrong ``named``."""
    if named is not None and not (named / "config.json").is_file():
        raise HarnessError(f"--policy {named}: holds no config.json; name the folder of the policy that was trained")
    candidates = [named] if named else [EMBEDDED / evidence.config.policy, Path(evidence.config.policy)]
    return next((folder for folder in candidates if (folder / "config.json").is_file()), None)


def policy_identity_faults(evidence: Evidence, folder: Path) -> Iterator[str]:
    """The policy at hand is, by weights and tokenizer, the one that was trained."""
    files = sorted(folder.glob("*.safetensors"))
    here = {
        "weights": hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest(),
        "tokenizer": sha256_file(folder / "tokenizer.json"),
    }
    for name, digest in here.items():
        if (claimed := getattr(evidence.run.policy, name)) != digest:
            yield f"its {name} are {digest[:16]} in {folder.name}, the run trained {claimed[:16]}"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a policy's tokenizer; raises HarnessError."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise HarnessError(f"{folder}: its tokenizer cannot be loaded ({str(error).splitlines()[0]})") from None


@dataclass
class Retraining:
    """What came of doing the training again; each list holds one sentence for every difference."""

    passes: list[str] = field(default_factory=list)
    """Log-probabilities of the forward passes."""
    gradients: list[str] = field(default_factory=list)
    """Norms, and which tensors have one."""
    adapter: list[str] = field(default_factory=list)
    """The saved adapter."""
    steps: int = 0
    """Steps done again."""
    ended_by: str = ""
    """Why the later ones were not; empty if all were."""
    largest_gap: float = 0.0
    """Nats, over all passes."""
    cosine: float | None = None
    """Of the adapter's update to the saved one, the least between two checkpoints; null where it is not compared."""
    distance: float = 0.0
    """Norm of the last difference between weights done again and saved ones; 0 where they are not compared."""
    apart: list["Apart"] = field(default_factory=list)
    """Log-probabilities of later passes that differ by more than rounding usually comes to."""


@dataclass(frozen=True)
class Apart:
    """One forward pass whose log-probabilities differ."""

    where: str
    gap: float
    """Largest over its trained ids, nats."""
    sensitivity: float
    """Norm of the gradient of that log-probability, nats by unit of weight."""
    allowed: float
    """Nats that need no such explanation."""


def retrain(evidence: Evidence, folder: Path) -> Retraining:
    """Do the training again from the initial adapter; raises HarnessError if that cannot be begun."""
    made = Retraining()
    model = _load(evidence, folder, INITIAL_ADAPTER)
    exact = evidence.config.precision == "fp32"
    named = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    if tensors_digest(named) != tensors_digest(evidence.initial_adapter):
        raise HarnessError(f"{INITIAL_ADAPTER}: peft loads other tensors than are saved")
    before, begun = evidence.initial_adapter, 0
    optimizer = torch.optim.AdamW(named.values(), lr=evidence.config.learning_rate, weight_decay=0.0)
    for step in evidence.steps:
        if made.steps and not exact:
            made.ended_by = "bf16 roundings add up over steps"
        elif made.steps - begun == MOST_STEPS:
            made.ended_by = f"roundings add up over more than {MOST_STEPS} steps without a checkpoint"
        if made.ended_by:
            break
        optimizer.zero_grad(set_to_none=True)
        tolerance = evidence.config.bands.logprob_gap if not exact else LATER_PASS if made.steps else FIRST_PASS
        with _precision(evidence, model):
            made.passes += _backward(evidence, model, step, tolerance, made)
        differences = list(_gradient_differences(evidence, step, named))
        if differences and _is_rounding(evidence, model, step, named):
            if step.gradient_norm:
                made.ended_by = f"the gradient of step {step.step} is rounding alone"
                break
            for parameter in named.values():
                parameter.grad = torch.zeros_like(parameter)
        else:
            made.gradients += differences
        torch.nn.utils.clip_grad_norm_(named.values(), evidence.config.max_gradient_norm)
        optimizer.step()
        made.steps += 1
        kept = checkpoints.folder_of(evidence.folder, step.step)
        if (kept / TENSORS).is_file() and step is not evidence.steps[-1]:
            saved = load_adapter(kept)
            if tensors_digest(saved) != step.policy_after:
                made.adapter.append(f"{kept.name}: its adapter is not the one that the step ended with")
                continue
            made.adapter += _update_differences(kept.name, named, before, saved, made)
            _judge_apart(made)
            for name, parameter in named.items():
                parameter.data.copy_(saved[name])
            before, begun = saved, made.steps
    if evidence.run.tensors is not None and not made.ended_by:
        made.adapter += _update_differences(ADAPTER, named, before, evidence.adapter, made)
    _judge_apart(made)
    return made


def _judge_apart(made: Retraining) -> None:
    """Name the log-probabilities that differ by more than the weights' own difference explains.

    Weights that are done again differ by rounding, and where a token is all but impossible its log-probability turns
    that into more; so much as the weights at the end explain is no difference of the training.
    """
    explained = 0.0 if made.adapter else made.distance
    for each in made.apart:
        if each.gap > each.allowed + each.sensitivity * explained:
            made.passes.append(f"{each.where}: its log-probabilities differ by {each.gap:.3g} nats")
    made.apart.clear()


def _backward(evidence: Evidence, model: Any, step: Step, tolerance: float, made: Retraining) -> Iterator[str]:
    bands, passes = evidence.config.bands, evidence.passes.get(step.step, [])
    for recorded, divisor in zip(passes, normalisers(evidence, passes), strict=True):
        row = evidence.rows[recorded.rollout]
        logprobs = completion_logprobs(model, row, evidence.config.temperature)
        again = logprobs.detach().tolist()
        trained = [(own, seen) for own, seen, bit in zip(again, recorded.logprobs, row.mask, strict=True) if bit]
        gap = max((abs(own - seen) for own, seen in trained), default=0.0)
        made.largest_gap = max(gap, made.largest_gap)
        where = f"step {step.step}, rollout {row.rollout}"
        allowed = tolerance
        if recorded.magnified is not None or not gap <= tolerance:
            rounding = rounding_of(model, row, evidence.config.temperature, bands.logprob_gap_magnified)
            allowed += rounding
            if recorded.magnified is not None and not recorded.magnified <= SAME_ROUNDING * rounding:
                yield f"{where}: rounding is said to explain {recorded.magnified:.1g} nats, it explains {rounding:.1g}"
        if not gap <= allowed and tolerance == LATER_PASS and math.isfinite(gap):
            sensitivity = sensitivity_of(model, logprobs, recorded.logprobs, row)
            made.apart.append(Apart(where, gap, sensitivity, allowed))
        elif not gap <= allowed:
            yield f"{where}: its log-probabilities differ by {gap:.3g} nats"
        loss = row_loss(evidence.header.objective, logprobs, row) / divisor
        if loss.requires_grad:
            loss.backward()


Parameters = dict[str, torch.nn.Parameter]
Tensors = dict[str, torch.Tensor]


def _norm(named: Parameters) -> float:
    present = (parameter.grad for parameter in named.values() if parameter.grad is not None)
    return math.sqrt(sum(gradient.double().square().sum().item() for gradient in present))


def _is_rounding(evidence: Evidence, model: Any, step: Step, named: Parameters) -> bool:
    """Whether a KL term's gradient is so small that log-probabilities are not known well enough to tell it."""
    if not evidence.config.beta:
        return False
    parameters = list(named.values())
    passes, allowed = evidence.passes.get(step.step, []), 0.0
    for recorded, divisor in zip(passes, normalisers(evidence, passes), strict=True):
        row = evidence.rows[recorded.rollout]
        with _precision(evidence, model):
            logprobs = completion_logprobs(model, row, evidence.config.temperature)
        parts = torch.autograd.grad((logprobs * logprobs.new_tensor(row.mask)).sum() / divisor, parameters)
        norm = math.sqrt(sum(part.double().square().sum().item() for part in parts))
        allowed += norm * evidence.config.bands.logprob_noise * (evidence.config.beta + abs(row.advantage))
    return _norm(named) + step.gradient_norm <= allowed


def _gradient_differences(evidence: Evidence, step: Step, named: Parameters) -> Iterator[str]:
    gradients = {name: p.grad for name, p in named.items() if p.grad is not None and p.grad.any()}
    norm = _norm(named)
    band = evidence.config.bands.norm_ratio if step.step == 1 else max(evidence.config.bands.norm_ratio, LATER_NORM)
    if (norm > 0) != (step.gradient_norm > 0) or abs(norm - step.gradient_norm) > band * step.gradient_norm:
        yield f"step {step.step}: gradient norm {step.gradient_norm:.6g}, done again {norm:.6g}"
    present = {name for name, has in step.gradients.items() if has}
    if step.step == 1 and (odd := sorted(present ^ gradients.keys())):
        yield f"step 1: {len(odd)} tensors have a gradient in one of recorded and done again, the first is {odd[0]}"


def _update_differences(
    where: str, named: Parameters, before: Tensors, after: Tensors, made: Retraining
) -> Iterator[str]:
    product = again = saved = apart = 0.0
    for name, start in before.items():
        mine = (named[name].detach().cpu() - start).double()
        theirs = (after[name] - start).double()
        product += (mine * theirs).sum().item()
        again, saved = again + mine.square().sum().item(), saved + theirs.square().sum().item()
        apart += (mine - theirs).square().sum().item()
    made.distance = math.sqrt(apart)
    if not again or not saved:
        if again != saved:
            yield f"{where}: update of norm {math.sqrt(saved):.3g}, done again {math.sqrt(again):.3g}"
        return
    cosine, ratio = product / math.sqrt(again * saved), math.sqrt(again / saved)
    made.cosine = cosine if made.cosine is None else min(cosine, made.cosine)
    if not (abs(1 - cosine) <= UPDATE_BAND and abs(1 - ratio) <= UPDATE_BAND):
        yield f"{where}: its update has cosine {cosine:.6f}, norm ratio {ratio:.6f} to the one done again"


def reload_faults(evidence: Evidence, folder: Path) -> Iterator[str]:
    """The saved adapter loads on the policy, with the very tensors that are on disk."""
    model = _load(evidence, folder, ADAPTER)
    loaded = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    if tensors_digest(loaded) != tensors_digest(evidence.adapter):
        yield f"{ADAPTER}: peft loads other tensors than are saved"


def _load(evidence: Evidence, folder: Path, adapter: str) -> Any:
    disable_progress_bar()
    dtype = torch.bfloat16 if evidence.config.precision == "bf16" else torch.float32
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        with warnings.catch_warnings():
            # peft asks transformers in a way that will be removed; nothing to do about it here.
            warnings.simplefilter("ignore", FutureWarning)
            return PeftModel.from_pretrained(model, str(evidence.folder / adapter), is_trainable=True).to(device)
    except (OSError, ValueError, RuntimeError) as error:
        raise HarnessError(f"{adapter} cannot be loaded on {folder} ({str(error).splitlines()[0]})") from None


def _precision(evidence: Evidence, model: Any) -> AbstractContextManager[Any]:
    device = next(model.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=evidence.config.precision == "bf16")
