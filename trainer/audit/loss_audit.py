"""The loss of an optimizer step: each of its rows is one that was sampled, trained as often and as surely as is due."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gymqual.harness.records.trace import Objective, Pass, Row, finite
from gymqual.trainer.audit import grpo_oracle, tolerances, training_rows
from gymqual.trainer.audit.frozen_weights import Parameters
from gymqual.trainer.audit.grpo_oracle import TrainedRow
from gymqual.trainer.audit.resume_state import Sampled
from gymqual.trainer.runs.config import Bands
from gymqual.trainer.runs.distributed import merged, ranks_of
from gymqual.trainer.runs.errors import AuditError, Findings

MEASURED: dict[str, Callable[[list[Any]], Any]] = {"gap": max, "kl": merged, "reference_kl": merged}
"""What is measured of a step's passes, and how that of several processes is put together."""


class LossAudit:
    """Follows a trainer from the rows of a generation batch through the forward passes of its loss."""

    def __init__(
        self, trainer: Any, made_of: Objective, bands: Bands, findings: Findings, model: Any, parameters: Parameters
    ) -> None:
        self.objective = made_of
        self.findings = findings
        self.passes: list[tuple[TrainedRow, Pass]] = []
        """Of the optimizer step at hand."""
        self.measured: dict[str, Any] = {}
        """Of the same step: the largest gap and every KL of sampler and loss, and every KL of the reference."""
        self.sampled_by: dict[int, Sampled] = {}
        """By rollout."""
        self._trainer = trainer
        self._ranks = ranks_of(trainer)
        self._bands = bands
        self._model = model
        self._parameters = parameters
        self._pending: list[Row] = []
        self._pending_tokens = 0
        self._uses: dict[int, int] = {}
        self._in_loss = False
        self._trl = {name: getattr(trainer, name) for name in self.hooks}

    @property
    def hooks(self) -> dict[str, Callable[..., Any]]:
        """What stands in for the trainer's own methods, by name."""
        return {
            "_get_per_token_logps_and_entropies": self.on_logprobs,
            "_compute_loss": self.on_compute_loss,
        }

    def begin(self, everyones: Sequence[Row], own: list[Row], uses: Mapping[int, int]) -> None:
        """Let the rows of a generation batch be due for training, ``own`` in this process; ``uses`` were before."""
        self._pending, self._uses = own, {row.rollout: uses.get(row.rollout, 0) for row in own}
        self._pending_tokens = sum(sum(row.mask) for row in everyones)

    def end_step(self) -> None:
        """Forget the passes of the step that was taken."""
        self.passes, self.measured = [], {}

    def require_all_used(self, steps: int | None = None) -> None:
        """Find a row of the last generation batch that was left out of training, or trained too often.

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

    def on_logprobs(self, *arguments: Any, **named: Any) -> Any:
        """Take the log-probabilities of the loss's own forward pass."""
        made = self._trl["_get_per_token_logps_and_entropies"](*arguments, **named)
        if self._in_loss:
            self._loss_logprobs = made[0].detach().float().cpu()
        return made

    def on_compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Hold every row of a forward pass to what was sampled, before its loss, and its log-probabilities after."""
        if not self._model.training:
            return self._trl["_compute_loss"](model, inputs)
        found = [self._match(inputs, index) for index in range(inputs["completion_ids"].size(0))]
        self._in_loss = True
        try:
            loss = self._trl["_compute_loss"](model, inputs)
        finally:
            self._in_loss = False
        policy = self._parameters.digest()
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
                normaliser=1.0 / grpo_oracle.row_weight(trained, self.objective),
            )
            with self.findings.rule():
                if not finite([p for p, trains in zip(logprobs, row.mask, strict=True) if trains]):
                    raise AuditError("finite", "a log-probability of the loss is not finite", rollout=row.rollout)
            with self.findings.rule():
                self._require_agreement(row, made)
            self.passes.append((trained, made))
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
            training_rows.require_equal_masks(mask.tolist(), row.mask, row.rollout)
        return row

    def _require_agreement(self, row: Row, made: Pass) -> None:
        """Hold the loss's log-probabilities to the sampler's, while the weights are those that sampled."""
        sampler_policy, sampled = self.sampled_by[row.rollout]
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
            self.measured["gap"] = max(max(gaps)[0], self.measured.get("gap", 0.0))
        context, temperature = self._trainer.compute_loss_context_manager, self._trainer.temperature
        beyond, made.magnified = tolerances.widest(
            gaps, self._bands, lambda: tolerances.explained(self._model, row, temperature, context)
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
        self.measured.setdefault("kl", []).extend(kl)
        if row.reference_logprobs is not None:
            behind = [r - p for r, p, m in zip(row.reference_logprobs, made.logprobs, row.mask, strict=True) if m]
            values = [(torch.tensor(value).exp() - value - 1).item() for value in behind]
            self.measured.setdefault("reference_kl", []).extend(values)
            if made.step == 1 and any(behind):
                detail = f"the KL of reference and policy is {max(values):.3g} before the first step, not exactly 0"
                raise AuditError("reference", detail, rollout=row.rollout)

    def take_everyones(self) -> None:
        """Put the passes of all processes, and what was measured of them, in the place of this one's."""
        parts = self._ranks.gather((self.passes, {name: self.measured.get(name) for name in MEASURED}))
        self.passes = merged([passes for passes, _ in parts])
        for name, join in MEASURED.items():
            if given := [measured[name] for _, measured in parts if measured[name] is not None]:
                self.measured[name] = join(given)

    def require_small_kl(self) -> None:
        """Hold the sampler to the loss in the mean, too: where roundings are large, a bias is seen there alone."""
        values = self.measured.get("kl", ())
        mean = sum(values) / len(values) if values else 0.0
        if not mean <= self._bands.logprob_kl:
            detail = f"the KL of sampler and loss is {mean:.3g} nats in the mean of a step, at equal weights"
            raise AuditError("log-probability gap", detail)


def _masked(ids: torch.Tensor, mask: torch.Tensor) -> list[int]:
    return ids[mask.bool()].tolist()
