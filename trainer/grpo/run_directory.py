"""What a training leaves in its run directory: adapter, probe, timings, the trace's legend, a card, the manifest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.harness.records.legend import LEGEND
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.audit.attach import Audit
from gymqual.trainer.grpo import legend
from gymqual.trainer.grpo.rewards import SHAPED, STRICT
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.accelerator import describe
from gymqual.trainer.runs.config import TrainingConfig
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, INITIAL_ADAPTER, TrainingRun
from gymqual.trainer.runs.tensors import compare_tensors, load_adapter

PROBE = "probe.json"
"""Log-probabilities of one rollout by the trained policy, for whoever loads the adapter."""
TIMINGS = "timings.json"


@dataclass(frozen=True)
class Ended:
    """A training that has ended, as one process saw it."""

    config: TrainingConfig
    policy: Policy
    gym: GymIdentity
    trainer: GymTrainer
    audit: Audit
    outcome: str
    seconds: float
    """Of training, by the wall clock."""
    cpu_s: float
    """Of training, in this process."""
    deviations: tuple[str, ...]

    def leave(self, folder: Path) -> TrainingRun:
        """Write what a run leaves, the manifest last, and return that."""
        if self.outcome == COMPLETED:
            save_adapter(self.trainer.model, folder / ADAPTER)
            write_atomically(folder / PROBE, readable_json(self._probe()))
        timings = {"training_s": round(self.seconds, 3), "cpu_s": round(self.cpu_s, 3)} | self.trainer.sampler.counts
        write_atomically(folder / TIMINGS, readable_json(timings))
        told = legend.of_run(folder / TRACE, self.policy.tokenizer)
        write_atomically(folder / LEGEND, readable_json(told.model_dump(mode="json")))
        write_atomically(folder / "README.md", self._card().encode())
        run = self.manifest(folder)
        run_manifest.write(run, folder)
        return run

    def manifest(self, folder: Path | None) -> TrainingRun:
        """Return the manifest of what stands in a folder; without one, what this process knows of the run."""
        rows, played = list(self.audit.rollouts.values()), self.audit.generation
        shaped = [row.rewards[SHAPED] for row in rows if row.rewards[SHAPED] is not None]
        on_cuda = self.trainer.accelerator.device.type == "cuda"
        return TrainingRun(
            outcome=self.outcome,
            config=self.config,
            policy=run_manifest.PolicyRecord(**self.policy.identity.to_json()),
            gym=run_manifest.GymRecord(**self.gym.to_json()),
            core=loaded.core_on_disk(),
            consumed_tasks=played.consumed,
            tokens=run_manifest.TokenTotals(**self.audit.tokens),
            replay=run_manifest.ReplayTotals(
                episodes=played.episodes, observations=played.observations, disagreements=0
            ),
            tensors=self._tensor_totals(folder) if folder and self.outcome == COMPLETED else None,
            steps=tuple(run_manifest.step_record(step) for step in self.audit.steps),
            strict_training_success=_mean([row.rewards[STRICT] or 0.0 for row in rows]),
            mean_shaped_reward=_mean([value for value in shaped if value is not None]),
            varied_groups=sum(step.varied_groups for step in self.audit.steps),
            deviations=(*self.deviations, *self.policy.notes),
            seconds=round(self.seconds, 3),
            processes=self.audit.objective.processes,
            device=str(describe(torch.cuda.current_device())) if on_cuda else "cpu",
            files=run_manifest.list_files(folder) if folder else {},
        )

    @torch.no_grad()
    def _probe(self) -> dict[str, Any]:
        """Return one rollout's ids and their log-probabilities by the trained policy."""
        row = next(iter(self.audit.rollouts.values()))
        accelerator = self.trainer.accelerator
        ids = torch.tensor([row.prompt + row.completion], device=accelerator.device)
        model = accelerator.unwrap_model(self.trainer.model).eval()
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])
        return {"ids": ids[0].tolist(), "logprobs": logprobs.squeeze(1).tolist()}

    def _tensor_totals(self, folder: Path) -> run_manifest.TensorTotals:
        change = compare_tensors(load_adapter(folder / INITIAL_ADAPTER), load_adapter(folder / ADAPTER))
        gradients = [step.gradients for step in self.audit.steps]
        with_gradient = {name for step in gradients for name, present in step.items() if present}
        return run_manifest.TensorTotals(
            trainable=len(change.changed) + len(change.unchanged),
            changed=len(change.changed),
            with_gradient=len(with_gradient),
            unchanged=change.unchanged,
            elements_changed=change.elements_changed,
            update_ratio=change.update_ratio,
        )

    def _card(self) -> str:
        config, weights = self.config, self.policy.identity.weights
        return f"""# Adapter of a qualification run

LoRA on `{self.policy.identity.name}` ({weights[:16]}), {config.steps} GRPO steps of {config.groups_per_step}
group(s) of {config.group_size} through the {config.gym} gym, seed {config.seed}, generation {config.generation}:
{self.outcome}.

It shows that the training stack did what it says on a synthetic development task. It is no model to be used, its
training success is not a held-out score, and nothing here says how the policy would do on anything else.
`gymqual replay .` derives every claim of `manifest.json` again.
"""


def save_adapter(model: Any, folder: Path) -> None:
    """Save a model's adapter into a folder that is there once it is whole."""
    with checkpoints.writing(folder):
        model.save_pretrained(folder)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
