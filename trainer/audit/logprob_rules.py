"""Log-probabilities that a row is trained against, held to those computed again or drawn with."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from trl.trainer.utils import use_adapter

from gymqual.harness.records.trace import Row
from gymqual.trainer.audit import grpo_oracle, tolerances
from gymqual.trainer.runs.config import Bands
from gymqual.trainer.runs.errors import AuditError, Findings


class LogprobRules:
    """The rules of a row's old and reference log-probabilities, by the trainer's own model."""

    def __init__(self, trainer: Any, bands: Bands, findings: Findings) -> None:
        self._trainer = trainer
        self._bands = bands
        self._findings = findings

    @torch.no_grad()
    def require_reference(self, row: Row) -> None:
        """Hold a row's reference log-probabilities to those of the reference, computed again."""
        if row.reference_logprobs is None:
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        with ExitStack() as stack:
            stack.enter_context(self._trainer.compute_loss_context_manager())
            if self._trainer.ref_model is None:
                stack.enter_context(use_adapter(model, "ref" if "ref" in model.peft_config else None))
            reference = self._trainer.ref_model or model
            again = grpo_oracle.logprobs_of(reference, row, self._trainer.temperature).tolist()
            beyond = self._widest(reference, row, row.reference_logprobs, again)
        with self._findings.rule():
            if beyond is not None:
                detail = f"its log-probabilities are {beyond.nats:.3g} nats from those of the model without its adapter"
                raise AuditError("reference", detail, rollout=row.rollout, offset=beyond.offset)

    def require_old(self, row: Row, drawn: Sequence[float | None]) -> None:
        """Hold the log-probabilities that a ratio is taken against to the sampler's own."""
        if row.old_logprobs is None:
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        beyond = self._widest(model, row, row.old_logprobs, drawn)
        with self._findings.rule():
            if beyond is not None:
                detail = f"the ratio is taken against log-probabilities {beyond.nats:.3g} nats from those drawn with"
                raise AuditError("old log-probabilities", detail, rollout=row.rollout, offset=beyond.offset)

    def _widest(
        self, model: Any, row: Row, told: Sequence[float], own: Sequence[float | None]
    ) -> tolerances.Gap | None:
        """Return where two computations of a row's trained log-probabilities lie farthest apart, beyond excuse."""
        pairs = enumerate(zip(told, own, row.mask, strict=True))
        gaps = [(abs(one - other), offset) for offset, (one, other, trains) in pairs if trains and other is not None]
        context = self._trainer.compute_loss_context_manager
        temperature = self._trainer.temperature
        return tolerances.widest(gaps, self._bands, lambda: tolerances.explained(model, row, temperature, context))[0]
