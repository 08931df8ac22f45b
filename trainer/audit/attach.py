"""An audit on any TRL ``GRPOTrainer``: what it samples is recorded, what it trains is held against that.

    from gymqual import attach
    audit = attach(trainer, "run/trace.jsonl")

It changes nothing of what the trainer does: sampled ids are the same bits with and without it. The run is stopped,
by an ``AuditError`` that names rule, rollout, turn and offset, before an optimizer step is taken on

- a row that cannot be rebuilt from what was sampled, or whose trained ids are not the sampled ones (a budget's cut
  is recorded and allowed), or a loss mask that is not exactly the sampled ids;
- a group that lacks members, an advantage that is not its rewards', a reward that is not finite;
- an episode of the environment that is not the rollout's;
- a policy that samples with other weights than it is trained with, by digest and by the gap between the sampler's
  log-probabilities and the loss's; sampling parameters under which the two cannot agree;
- siblings that repeat each other as independent draws would not, or random numbers that are used twice;
- a task, or a row of the dataset, that is not the next one;
- a gradient that is not the one computed again, row by row, from recorded ids and rewards; one that is clipped
  otherwise, or a learning rate that is not its schedule's;
- with a KL term: a KL at the first step that is not exactly 0;

and before the next one on a change of the weights that is not the optimizer's, or of a tensor that is not trained.

Why these and not "all tensors changed": reports/sample/silent-bugs shows which evidence catches which bug.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.harness.records.trace import Episode, Header, Oracle, Record, Row, Step, TraceWriter
from gymqual.trainer.audit import grpo_oracle
from gymqual.trainer.audit.frozen_weights import Parameters
from gymqual.trainer.audit.grpo_oracle import TrainedRow
from gymqual.trainer.audit.loss_audit import LossAudit
from gymqual.trainer.audit.optimizer_oracle import OptimizerOracle
from gymqual.trainer.audit.resume_state import read_past
from gymqual.trainer.audit.rollout_audit import GenerationAudit
from gymqual.trainer.audit.step_record import summed_up
from gymqual.trainer.audit.trl_settings import objective_of
from gymqual.trainer.runs.config import Bands, bands_of
from gymqual.trainer.runs.distributed import ranks_of
from gymqual.trainer.runs.errors import AuditError, Findings

OracleAt = Callable[[int], bool]


def attach(
    trainer: GRPOTrainer,
    trace: str | Path,
    *,
    bands: Bands | None = None,
    oracle_at: OracleAt | None = None,
    episodes: Callable[[Any], Episode] | None = None,
    rewards: Callable[[Episode], dict[str, float | None]] | None = None,
    tasks: Sequence[str] | None = None,
    stops: bool = True,
    goes_on: bool = False,
) -> "Audit":
    """Record and audit a trainer from now on; raises AuditError for what cannot be audited.

    ``trace`` must not exist yet. ``oracle_at`` says at which optimizer steps, from 1, the gradient is computed again:
    1, 2 and the last by default. ``episodes`` returns what an environment recorded of its rollout, if it does, and
    ``rewards`` what an episode must be paid, by column; ``tasks`` is the order in which episodes' tasks are due.
    Without ``stops`` nothing is raised in training: what does not hold is kept in ``findings``, to study a trainer
    that is known to be broken. With ``goes_on`` the trace is one of an earlier part of the run: call ``restore`` next.
    Of several processes each audits what it does; the first one writes the trace of them all.
    """
    last = trainer.args.max_steps
    chosen = oracle_at or (lambda step: step in (1, 2, last))
    allowed = bands or bands_of("bf16" if trainer.args.bf16 else "fp32")
    writer = TraceWriter(Path(trace), goes_on=goes_on) if ranks_of(trainer).is_first else None
    return Audit(trainer, writer, allowed, chosen, episodes, rewards, tasks, Findings(stops))


class Audit(TrainerCallback):
    """What is attached. ``steps`` and ``rollouts`` may be read while training goes on."""

    def __init__(
        self,
        trainer: GRPOTrainer,
        writer: TraceWriter | None,
        bands: Bands,
        oracle_at: OracleAt,
        episodes: Callable[[Any], Episode] | None,
        rewards: Callable[[Episode], dict[str, float | None]] | None,
        tasks: Sequence[str] | None,
        findings: Findings,
    ) -> None:
        self.findings = findings
        self.steps: list[Step] = []
        self.rollouts: dict[int, Row] = {}
        self.tokens = {"sampled": 0, "external": 0, "cut": 0}
        self._trainer = trainer
        self._ranks = ranks_of(trainer)
        self._writer = writer
        self._bands = bands
        self._oracle_at = oracle_at
        self._optimizer = OptimizerOracle(trainer, bands.update)
        self.model: Any = trainer.accelerator.unwrap_model(trainer.model)
        """The model that is trained, without what accelerate wraps it in."""
        self._parameters = Parameters(self.model)
        self.objective = objective_of(trainer)
        self.generation = GenerationAudit(trainer, self.objective, bands, findings, episodes, rewards, tasks)
        self._loss = LossAudit(trainer, self.objective, bands, findings, self.model, self._parameters)
        self._step: dict[str, Any] = {}
        self._policy_before = ""
        self._raw: dict[str, torch.Tensor] = {}
        header = Header(
            writer=f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
            objective=self.objective,
            end_ids=sorted(trainer.eos_token_ids),
        )
        if writer is not None and not writer.goes_on:
            writer.write(header)
        hooks = {
            "_generate_and_score_completions": self.on_generate_and_score_completions,
            "training_step": self.on_training_step,
        }
        self._trl: dict[str, Any] = {name: getattr(trainer, name) for name in hooks}
        for name, hook in (*hooks.items(), *self.generation.hooks.items(), *self._loss.hooks.items()):
            setattr(trainer, name, hook)
        trainer.add_callback(self)

    def state(self) -> dict[str, Any]:
        """Return what a continuation needs and the trace does not tell; for ``torch.save``."""
        return {"generation": self.generation.state(), "optimizer": self._optimizer.state()}

    @property
    def audits_updates(self) -> bool:
        """Whether the optimizer is one whose steps are computed again: AdamW as the arguments name it."""
        return self._optimizer.audited

    def restore(self, trace: Iterable[Record], state: Mapping[str, Any]) -> None:
        """Go on behind an earlier part of the run, from its trace and what ``state`` returned at its end."""
        past = read_past(trace)
        for row in past.rows:
            self._note(row, *past.sampled_by[row.rollout])
        share = len(past.pending) // self._ranks.count
        self._loss.begin(past.pending, past.pending[self._ranks.rank * share :][:share], past.uses)
        self.steps = past.steps
        self._policy_before = past.steps[-1].policy_after
        self._optimizer.restore(state["optimizer"])
        self.generation.restore(state["generation"], past.episodes, past.rows)

    def policy_digest(self) -> str:
        """Return the sha256 over the trainable tensors as they are now."""
        return self._parameters.digest()

    # ---- generation -------------------------------------------------------------------------------------

    def on_generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        """Rebuild every row of a generation batch from what was sampled, and hold its advantage to its rewards."""
        if not self.model.training:
            return self._trl["_generate_and_score_completions"](inputs)
        self._loss.require_all_used()
        self.generation.require_inputs(inputs)
        output = self._trl["_generate_and_score_completions"](inputs)
        policy = self.policy_digest()
        batch = self.generation.records(output, inputs, len(self._loss.sampled_by), policy)
        self._write(*batch.calls, *batch.episodes, *batch.rows)
        for row in batch.rows:
            self._note(row, policy, batch.drawn[row.rollout])
        self._loss.begin(batch.rows, batch.own, {})
        return output

    def _write(self, *records: Record) -> None:
        if self._writer is not None:
            self._writer.write(*records)

    def _note(self, row: Row, policy: str, drawn: list[float | None]) -> None:
        self._loss.sampled_by[row.rollout] = (policy, drawn)
        self.rollouts[row.rollout] = row
        self.tokens["sampled"] += sum(row.mask)
        self.tokens["external"] += sum(s.end - s.start for s in row.spans if s.source == "external")
        self.tokens["cut"] += row.cut

    # ---- the gradient and the step ----------------------------------------------------------------------

    def on_training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Hold the gradient to the oracle's once all passes of an optimizer step are done, before clipping."""
        if not self._policy_before:
            self._policy_before = self.policy_digest()
        loss = self._trl["training_step"](*arguments, **named)
        if self._trainer.accelerator.sync_gradients:
            self._take_gradient()
        return loss

    def _take_gradient(self) -> None:
        step = self._trainer.state.global_step + 1
        trainable = self._parameters.trainable()
        gradients = {
            name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).detach().cpu().double()
            for name, parameter in trainable.items()
        }
        self._raw = {name: value for name, value in gradients.items() if trainable[name].grad is not None}
        saved = self._parameters.saved_name
        self._step["gradients"] = {saved(name): bool(value.any()) for name, value in gradients.items()}
        self._step["norm"] = sum((value**2).sum().item() for value in gradients.values()) ** 0.5
        own = [each for each, _ in self._loss.passes]
        self._loss.take_everyones()
        self._write(*(made for _, made in self._loss.passes))
        with self.findings.rule():
            self._loss.require_small_kl()
        if not self._oracle_at(step):
            return
        context = self._trainer.compute_loss_context_manager
        again = grpo_oracle.gradient(self.model, own, self.objective, self._trainer.temperature, context)
        oracle = self._step["oracle"] = grpo_oracle.compare(gradients, self._ranks.total(again))
        with self.findings.rule():
            self._require_gradient(oracle, own)
        with self.findings.rule():
            self._parameters.require_frozen()

    def _require_gradient(self, oracle: Oracle, own: Sequence[TrainedRow]) -> None:
        learns = any(each.row.advantage and any(each.row.mask) for each, _ in self._loss.passes)
        if learns and not oracle.trainer_norm:
            raise AuditError("gradient", "rewards differ, and no trainable tensor has a gradient")
        if oracle.cosine is None or oracle.norm_ratio is None:
            agrees = oracle.trainer_norm == oracle.oracle_norm
        else:
            near = abs(1 - oracle.norm_ratio) <= self._bands.norm_ratio
            agrees = near and abs(1 - oracle.cosine) <= self._bands.cosine
        if agrees:
            return
        context = self._trainer.compute_loss_context_manager
        explained = grpo_oracle.noise(
            self.model, own, self.objective, self._trainer.temperature, context, self._bands.logprob_noise
        )
        allowed = sum(self._ranks.gather(explained))
        if grpo_oracle.distance(oracle) > allowed:
            detail = f"cosine {oracle.cosine}, norm {oracle.trainer_norm:.3g} to the {oracle.oracle_norm:.3g} computed"
            raise AuditError("gradient", f"{detail} again from what was recorded (rounding explains {allowed:.1g})")

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Begin to follow the learning rate's schedule; raises AuditError for a training whose beginning is unknown."""
        if state.global_step != len(self.steps):
            detail = f"training goes on at step {state.global_step + 1}, {len(self.steps)} steps before are known"
            raise AuditError("configuration", f"not audited: {detail}; attach to a training from its first step")
        self.findings.step = state.global_step + 1
        with self.findings.rule():
            self._require_one_policy(self.policy_digest())
        self._optimizer.begin(state.global_step, state.max_steps)

    def _require_one_policy(self, policy: str) -> None:
        """Hold all processes to the same weights, and to having come here: none goes on while another has stopped."""
        held = self._ranks.gather(policy)
        odd = [rank for rank, other in enumerate(held) if other != held[0]]
        if odd:
            raise AuditError("processes", f"process {odd[0]} holds other weights than process 0")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Take the learning rate that the step is made with, and hold it and the clipped gradient to what is due."""
        self._step["learning_rate"] = named["optimizer"].param_groups[0]["lr"]
        with self.findings.rule():
            self._parameters.require_same_trained()
        if self._optimizer.audited:
            with self.findings.rule():
                self._optimizer.before(self._parameters.trainable(), self._raw, named["optimizer"])
        self._ranks.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Hold the change of the weights to the optimizer's, and write the step's record."""
        if self._optimizer.audited:
            with self.findings.rule():
                self._optimizer.after(self._parameters.trainable())
        trained = [each.row for each, _ in self._loss.passes]
        if not trained:
            # None of what was trained is known; that was said before.
            return
        policy = self.policy_digest()
        with self.findings.rule():
            self._require_one_policy(policy)
        measured = {**self._loss.measured, **self._step}
        record = summed_up(state.global_step, trained, measured, self.objective, (self._policy_before, policy))
        self._write(record)
        self.steps.append(record)
        self._policy_before, self._step = policy, {}
        self._loss.end_step()
        self.findings.step = state.global_step + 1

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Look at the last generation batch too, and close the trace."""
        self._loss.require_all_used(state.global_step)
        with self.findings.rule():
            self._parameters.require_frozen()
        self.close()

    def close(self) -> None:
        """Close the trace, of a run that was stopped, too. Idempotent."""
        if self._writer is not None:
            self._writer.close()
