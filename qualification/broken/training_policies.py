"""Single alterations of a training run that are consistent with all but the policy, by the claim that owns each."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gymqual.harness.records.files import readable_json
from gymqual.harness.records.legend import LEGEND
from gymqual.qualification.broken.training_traces import Alteration, other, rewards_swapped_in_a_group, unlike_rows
from gymqual.qualification.support.training.small_run import Dump
from gymqual.trainer.runs.manifest import ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS
from gymqual.trainer.runs.tensors import tensors_digest


def an_id_everywhere(run: Dump) -> None:
    """Another id of a first turn, in the call, the contexts after it and the row."""
    call = run.first("call", turn=0)
    position, rollout = len(call["context"]) + 1, call["rollout"]
    new = other(call["sampled"][1])
    call["sampled"][1] = new
    for later in run.of("call"):
        if later["rollout"] == rollout and later["turn"] > 0:
            later["context"][position] = new
    run.first("row", rollout=rollout)["completion"][1] = new


def a_better_answer(run: Dump) -> None:
    """The right answer for a rollout that gave another one, with all that follows from it."""
    failed = run.first("episode", outcome="wrong_answer")
    solved = next(e for e in run.of("episode") if e["strict"])
    failed["answer"] = solved["answer"]


def swapped_episodes(run: Dump) -> None:
    """Two rollouts of a group with each other's episodes, rewards and advantages."""
    one, two = unlike_rows(run)
    rewards_swapped_in_a_group(run)
    first, second = (run.first("episode", rollout=row["rollout"]) for row in (one, two))
    first["rollout"], second["rollout"] = second["rollout"], first["rollout"]


def both_logprobs(run: Dump) -> None:
    """A sampler and a loss that agree on another probability than the weights give."""
    made = run.first("pass", step=2)
    row = run.first("row", rollout=made["rollout"])
    made["logprobs"][1] -= 0.01
    call = run.first("call", rollout=row["rollout"], turn=0)
    call["logprobs"][1] -= 0.01


def a_gap_excused_as_rounding(run: Dump) -> None:
    """A sampler that drew one id with another probability, where rounding is said to explain it."""
    step, made = run.first("step"), run.first("pass", step=1)
    call = run.first("call", rollout=made["rollout"], turn=0)
    call["logprobs"][1] -= 1e-3
    made["magnified"] = 4e-3
    gaps = []
    for each in (each for each in run.of("pass") if each["step"] == 1):
        row = run.first("row", rollout=each["rollout"])
        for drawn in (one for one in run.of("call") if one["rollout"] == each["rollout"]):
            start = len(drawn["context"]) - len(row["prompt"])
            gaps += [each["logprobs"][start + at] - own for at, own in enumerate(drawn["logprobs"])]
    run.manifest["steps"][0]["logprob_gap_max"] = step["logprob_gap_max"] = max(map(abs, gaps))
    step["logprob_gap_kl"] = sum(math.expm1(-gap) + gap for gap in gaps) / len(gaps)


def a_gradient_of_half_the_size(run: Dump) -> None:
    """Half a loss: norms of trainer and oracle halved together."""
    step = run.first("step", step=2)
    step["gradient_norm"] /= 2
    for name in ("trainer_norm", "oracle_norm"):
        step["oracle"][name] /= 2
    run.manifest["steps"][1]["gradient_norm"] /= 2


def another_adapter(run: Dump) -> None:
    """An adapter of another training under digests that say it is this one's."""
    path = run.folder / ADAPTER / TENSORS
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: value + 1e-3 * torch.randn(value.shape, generator=generator) for name, value in tensors.items()}
    save_file(tensors, path)
    run.of("step")[-1]["policy_after"] = run.manifest["steps"][-1]["policy_after"] = tensors_digest(tensors)


def another_policy(run: Dump) -> None:
    run.manifest["policy"]["weights"] = run.manifest["config"]["policy_weights"] = "0" * 64
    run.training["policy_weights"] = "0" * 64


def an_adapter_for_another_model(run: Dump) -> None:
    path = run.folder / ADAPTER / "adapter_config.json"
    path.write_text(path.read_text().replace('"r": 16', '"r": 8'))


def _edit_legend(run: Dump, change: Callable[[dict[str, Any]], object]) -> None:
    path = run.folder / LEGEND
    legend = json.loads(path.read_bytes())
    change(legend)
    path.write_bytes(readable_json(legend))


def another_spelling(run: Dump) -> None:
    """An observation that would be shown with another digit than the model saw."""
    tokens = run.first("row")["completion"]
    _edit_legend(run, lambda legend: legend["tokens"].update({str(tokens[2]): "9"}))


def another_family(run: Dump) -> None:
    """A task that would be shown as one of another kind."""
    task = run.first("episode")["task_id"]
    _edit_legend(run, lambda legend: legend["families"].update({task: "rabatt"}))


POLICY_OWNERS: dict[Alteration, str] = {
    an_id_everywhere: "forward passes", a_better_answer: "transcripts", swapped_episodes: "transcripts",
    both_logprobs: "forward passes", a_gap_excused_as_rounding: "forward passes",
    a_gradient_of_half_the_size: "gradients again",
    another_adapter: "training again", another_policy: "policy", an_adapter_for_another_model: "adapter",
    another_spelling: "legend", another_family: "legend",
}  # fmt: skip
