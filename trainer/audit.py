"""An audit on any TRL ``GRPOTrainer``: what it samples is recorded, what it trains is held against that.

    from trainer.audit import attach
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

from harness.trace import Episode, Header, Oracle, Pass, Record, Row, Step, TraceWriter, finite
from trainer import conditioning, objective, rows
from trainer.config import Bands, bands_of
from trainer.errors import AuditError, Findings
from trainer.generation import GenerationAudit
from trainer.objective import TrainedRow
from trainer.optimizer_oracle import OptimizerOracle
from trainer.parameters import Parameters
from trainer.past import read_past
from trainer.ranks import merged, ranks_of
from trainer.settings import objective_of
from trainer.step_record import summed_up

OracleAt = Callable[[int], bool]
MEASURED: dict[str, Callable[[list[Any]], Any]] = {"gap": max, "kl": merged, "reference_kl": merged}
"""What is measured of a step's passes, and how that of several processes is put together."""


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
        self._pending: list[Row] = []
        self._pending_tokens = 0
        self._uses: dict[int, int] = {}
        self._sampled_by: dict[int, tuple[str, list[float | None]]] = {}
        self._in_loss = False
        self._passes: list[tuple[TrainedRow, Pass]] = []
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
            "_get_per_token_logps_and_entropies": self.on_logprobs,
            "_compute_loss": self.on_compute_loss,
            "training_step": self.on_training_step,
        }
        self._trl: dict[str, Any] = {name: getattr(trainer, name) for name in hooks}
        for name, hook in (*hooks.items(), *self.generation.hooks.items()):
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
        self._begin(past.pending, past.pending[self._ranks.rank * share :][:share], past.uses)
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
        self._check_all_used()
        self.generation.require_inputs(inputs)
        output = self._trl["_generate_and_score_completions"](inputs)
        policy = self.policy_digest()
        batch = self.generation.records(output, inputs, len(self._sampled_by), policy)
        self._write(*batch.calls, *batch.episodes, *batch.rows)
        for row in batch.rows:
            self._note(row, policy, batch.drawn[row.rollout])
        self._begin(batch.rows, batch.own, {})
        return output

    def _begin(self, rows: Sequence[Row], own: list[Row], uses: Mapping[int, int]) -> None:
        """Let the rows of a generation batch be due for training, ``own`` in this process."""
        self._pending, self._uses = own, {row.rollout: uses.get(row.rollout, 0) for row in own}
        self._pending_tokens = sum(sum(row.mask) for row in rows)

    def _write(self, *records: Record) -> None:
        if self._writer is not None:
            self._writer.write(*records)

    def _note(self, row: Row, policy: str, drawn: list[float | None]) -> None:
        self._sampled_by[row.rollout] = (policy, drawn)
        self.rollouts[row.rollout] = row
        self.tokens["sampled"] += sum(row.mask)
        self.tokens["external"] += sum(s.end - s.start for s in row.spans if s.source == "external")
        self.tokens["cut"] += row.cut

    def _check_all_used(self, steps: int | None = None) -> None:
        """Raise if a row of the last generation batch was left out of training, or trained too often.

        ``steps`` is after how many optimizer steps training ended, which may be before its last batch was used up.
        """
        due = self.objective.num_iterations
        passes = 0 if steps is None else steps * self.objective.gradient_accumulation
        unfinished = passes % (self.objective.steps_per_generation * due)
        for rollout, uses in self._uses.items():
            with self.findings.rule():
                if uses > due or (uses < due and not unfinished):
                    raise AuditError("rows", f"trained {uses} times, {due} are due", rollout=rollout)
        with self.findings.rule():
            used = sum(self._uses.values()) * self.objective.steps_per_generation
            if unfinished and used != len(self._uses) * unfinished:
                raise AuditError("rows", f"{sum(self._uses.values())} rows were trained in {unfinished} passes")

    # ---- the loss ---------------------------------------------------------------------------------------

    def on_logprobs(self, *arguments: Any, **named: Any) -> Any:
        """Take the log-probabilities of the loss's own forward pass."""
        made = self._trl["_get_per_token_logps_and_entropies"](*arguments, **named)
        if self._in_loss:
            self._loss_logprobs = made[0].detach().float().cpu()
        return made

    def on_compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Hold every row of a forward pass to what was sampled, before its loss, and its log-probabilities after."""
        if not self.model.training:
            return self._trl["_compute_loss"](model, inputs)
        found = [self._match(inputs, index) for index in range(inputs["completion_ids"].size(0))]
        self._in_loss = True
        try:
            loss = self._trl["_compute_loss"](model, inputs)
        finally:
            self._in_loss = False
        policy = self.policy_digest()
        matched = [row for row in found if row is not None]
        tokens = sum(sum(row.mask) for row in matched)
        for index, row in enumerate(found):
            if row is None:
                continue
            logprobs = self._loss_logprobs[index, : len(row.completion)].tolist()
            trained = TrainedRow(row, len(matched), tokens, self._pending_tokens)
            made = Pass(
                step=self._trainer.state.global_step + 1,
                rollout=row.rollout,
                policy=policy,
                logprobs=logprobs,
                normaliser=1.0 / objective.row_weight(trained, self.objective),
            )
            with self.findings.rule():
                if not finite([p for p, trains in zip(logprobs, row.mask, strict=True) if trains]):
                    raise AuditError("finite", "a log-probability of the loss is not finite", rollout=row.rollout)
            with self.findings.rule():
                self._require_agreement(row, made)
            self._passes.append((trained, made))
        return loss

    def _match(self, inputs: dict[str, Any], index: int) -> Row | None:
        """Return the recorded row that a row of the loss is, None where it is none and that does not stop the run."""
        prompt = _masked(inputs["prompt_ids"][index], inputs["prompt_mask"][index])
        width = inputs["completion_ids"][index].tolist()
        advantage = inputs["advantages"][index].item()
        same = [row for row in self._pending if row.prompt == prompt and row.completion == width[: len(row.completion)]]
        # Of rows that begin alike the longest; equal siblings are told apart by their advantage.
        same = [row for row in same if len(row.completion) == max(len(other.completion) for other in same)]
        with self.findings.rule():
            if not same:
                raise AuditError("rows", f"row {index} of the loss was not sampled in this generation batch")
        if not same:
            return None
        fitting = [row for row in same if abs(row.advantage - advantage) <= 1e-6 * max(1.0, abs(advantage))]
        with self.findings.rule():
            if not fitting:
                detail = f"it is trained with the advantage {advantage:.6g}, its own is {same[0].advantage:.6g}"
                raise AuditError("advantage", detail, rollout=same[0].rollout)
        row = min(fitting or same, key=lambda each: self._uses[each.rollout])
        self._uses[row.rollout] += 1
        mask = inputs["completion_mask"][index]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"][index]
        with self.findings.rule():
            rows.require_equal_masks(mask.tolist(), row.mask, row.rollout)
        return row

    def _require_agreement(self, row: Row, made: Pass) -> None:
        """Hold the loss's log-probabilities to the sampler's, while the weights are those that sampled."""
        sampler_policy, sampled = self._sampled_by[row.rollout]
        first_use = (
            self._uses[row.rollout] == 1 and self.objective.steps_per_generation <= self.objective.gradient_accumulation
        )
        if first_use and sampler_policy != made.policy:
            raise AuditError("policy", "sampled by other weights than are trained", rollout=row.rollout)
        if sampler_policy != made.policy:
            return
        gaps = [
            (abs(own - drawn), offset)
            for offset, (own, drawn, trains) in enumerate(zip(made.logprobs, sampled, row.mask, strict=True))
            if trains and drawn is not None
        ]
        if gaps:
            self._step["gap"] = max(max(gaps)[0], self._step.get("gap", 0.0))
        context, temperature = self._trainer.compute_loss_context_manager, self._trainer.temperature
        beyond, made.magnified = conditioning.widest(
            gaps, self._bands, lambda: conditioning.explained(self.model, row, temperature, context)
        )
        if beyond is not None:
            detail = f"log-probabilities of sampler and loss differ by {beyond.nats:.3g} nats at equal weights"
            detail += f" (rounding explains {beyond.explained:.1g})"
            raise AuditError("log-probability gap", detail, rollout=row.rollout, offset=beyond.offset)
        kl = [
            (torch.tensor(drawn - own).exp() - 1 - (drawn - own)).item()
            for own, drawn, trains in zip(made.logprobs, sampled, row.mask, strict=True)
            if trains and drawn is not None
        ]
        self._step.setdefault("kl", []).extend(kl)
        if row.reference_logprobs is not None:
            behind = [r - p for r, p, m in zip(row.reference_logprobs, made.logprobs, row.mask, strict=True) if m]
            values = [(torch.tensor(value).exp() - value - 1).item() for value in behind]
            self._step.setdefault("reference_kl", []).extend(values)
            if made.step == 1 and any(behind):
                detail = f"the KL of reference and policy is {max(values):.3g} before the first step, not exactly 0"
                raise AuditError("reference", detail, rollout=row.rollout)

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
        own = [each for each, _ in self._passes]
        self._take_everyones()
        self._write(*(made for _, made in self._passes))
        with self.findings.rule():
            self._require_small_kl()
        if not self._oracle_at(step):
            return
        context = self._trainer.compute_loss_context_manager
        again = objective.gradient(self.model, own, self.objective, self._trainer.temperature, context)
        oracle = self._step["oracle"] = objective.compare(gradients, self._ranks.total(again))
        with self.findings.rule():
            self._require_gradient(oracle, own)
        with self.findings.rule():
            self._parameters.require_frozen()

    def _take_everyones(self) -> None:
        """Put the passes of all processes, and what was measured of them, in the place of this one's."""
        parts = self._ranks.gather((self._passes, {name: self._step.get(name) for name in MEASURED}))
        self._passes = merged([passes for passes, _ in parts])
        for name, join in MEASURED.items():
            if given := [measured[name] for _, measured in parts if measured[name] is not None]:
                self._step[name] = join(given)

    def _require_small_kl(self) -> None:
        """Hold the sampler to the loss in the mean, too: where roundings are large, a bias is seen there alone."""
        values = self._step.get("kl", ())
        mean = sum(values) / len(values) if values else 0.0
        if not mean <= self._bands.logprob_kl:
            detail = f"the KL of sampler and loss is {mean:.3g} nats in the mean of a step, at equal weights"
            raise AuditError("log-probability gap", detail)

    def _require_gradient(self, oracle: Oracle, own: Sequence[TrainedRow]) -> None:
        learns = any(each.row.advantage and any(each.row.mask) for each, _ in self._passes)
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
        explained = objective.noise(
            self.model, own, self.objective, self._trainer.temperature, context, self._bands.logprob_noise
        )
        allowed = sum(self._ranks.gather(explained))
        if objective.distance(oracle) > allowed:
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
        trained = [each.row for each, _ in self._passes]
        if not trained:
            # None of what was trained is known; that was said before.
            return
        policy = self.policy_digest()
        with self.findings.rule():
            self._require_one_policy(policy)
        record = summed_up(state.global_step, trained, self._step, self.objective, (self._policy_before, policy))
        self._write(record)
        self.steps.append(record)
        self._policy_before, self._passes, self._step = policy, [], {}
        self.findings.step = state.global_step + 1

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Look at the last generation batch too, and close the trace."""
        self._check_all_used(state.global_step)
        with self.findings.rule():
            self._parameters.require_frozen()
        self.close()

    def close(self) -> None:
        """Close the trace, of a run that was stopped, too. Idempotent."""
        if self._writer is not None:
            self._writer.close()


def _masked(ids: torch.Tensor, mask: torch.Tensor) -> list[int]:
    return ids[mask.bool()].tolist()
