"""Trainings with a planted bug: stopped by the audit, as a user would see it, or studied to their end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, set_seed

from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.qualification.broken.faults import STEPS
from gymqual.qualification.broken.trainers import Fault
from gymqual.trainer.grpo.trainer import GymTrainer, attach_audit
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.config import TrainingConfig
from gymqual.trainer.runs.errors import AuditError

POOL = tuple(f"v1/train/43/{index}" for index in range(16))


def stopped_by(
    trainer: type[GymTrainer], folder: Path, gym: type[LocalGym] = LocalGym, **settings: Any
) -> tuple[str | None, bool]:
    """Train four steps; return the rule that stopped it, and whether nothing was trained beyond.

    That is so if the weights are still those that the stopped step began with, or the rule is about the step itself.
    """
    rule, spared, _ = _stopped(trainer, folder, gym, **settings)
    return rule, spared


def _stopped(
    trainer: type[GymTrainer], folder: Path, gym: type[LocalGym], **settings: Any
) -> tuple[str | None, bool, int]:
    """Return the same, and how many steps were taken."""
    made, audit = audited(trainer, folder / trainer.__name__, gym=gym, **settings)
    before = audit.policy_digest()
    try:
        made.train()
    except AuditError as error:
        spared = audit.policy_digest() == (audit.steps[-1].policy_after if audit.steps else before)
        return error.rule, spared or error.rule in AFTER_THE_STEP, len(audit.steps)
    finally:
        audit.close()
    return None, False, len(audit.steps)


AFTER_THE_STEP = ("update", "frozen")
"""Rules that can only be asked once a step was taken."""


def stops_of(faults: Sequence[Fault], folder: Path) -> dict[str, object]:
    """Return (rule that stopped it, nothing trained beyond) of every fault, and of the healthy trainer in its place.

    The healthy trainer stands under ``healthy with`` what the faults' trainings are set to, and goes a step beyond the
    one that stopped the last of them. Once one is not as is due, the rest is not trained: the verdict is known.
    """
    seen: dict[str, object] = {}
    controls: dict[str, tuple[Fault, int]] = {}
    due = due_of(faults)
    for fault in faults:
        rule, spared, taken = _stopped(fault.trainer, folder, fault.gym, **fault.settings)
        seen[fault.name] = rule, spared
        if seen[fault.name] != due[fault.name]:
            return seen
        control = f"healthy with {fault.gym.__name__} {fault.settings}"
        controls[control] = fault, max(taken, controls[control][1] if control in controls else 0)
    for number, (control, (fault, taken)) in enumerate(controls.items()):
        settings = {"steps": min(STEPS, taken + 2), **fault.settings}
        seen[control] = stopped_by(GymTrainer, folder / f"control-{number}", fault.gym, **settings)
        if seen[control] != due[control]:
            break
    return seen


def due_of(faults: Sequence[Fault]) -> dict[str, object]:
    """Return what ``stops_of`` has to return."""
    stopped: dict[str, object] = {fault.name: (fault.rules[0], True) for fault in faults}
    return {**stopped, **{f"healthy with {f.gym.__name__} {f.settings}": (None, False) for f in faults}}


def sampled_ids(folder: Path, with_audit: bool, **settings: Any) -> list[Any]:
    """Train two steps; return all completions, or the rule that stopped it."""
    noted: list[Any] = []

    class Noting(GymTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            made = super()._generate(prompts)
            noted.extend(made[1])
            return made

    made, audit = audited(Noting, folder, with_audit, **{"steps": 2, **settings})
    try:
        made.train()
    except AuditError as error:
        noted.append(str(error))
    if audit:
        audit.close()
    return noted


def audited(
    trainer: type[GymTrainer],
    folder: Path,
    with_audit: bool = True,
    gym: type[LocalGym] = LocalGym,
    stops: bool = True,
    **settings: Any,
) -> tuple[Any, Any]:
    """Return a trainer of mini4 on tasks played in this process, and its audit, None without one."""
    config = TrainingConfig(**{"tasks": POOL, "policy": "mini4", "steps": STEPS, "oracle_steps": "every", **settings})
    tasks = GermanOrders()
    set_seed(config.seed)
    made: Any = trainer(config, load_policy(config.policy), gym(tasks), tasks, folder / "trl")  # type: ignore[arg-type]
    made.remove_callback(PrinterCallback)
    return made, attach_audit(made, config, folder / "trace.jsonl", stops=stops) if with_audit else None
