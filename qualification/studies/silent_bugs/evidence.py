"""What of the table is evidence of which kind, and what each kind says of a bug."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from gymqual.qualification.broken.trainers import CATALOGUE, Fault
from gymqual.qualification.studies.silent_bugs.result import HEALTHY, Curve, SilentBugs, Study
from gymqual.qualification.studies.silent_bugs.trainings import CURVE

USUAL = ("tensors changed", "gradients", "base unchanged", "learning curve")
"""What is usually looked at, the last with forty steps of it."""
RULES: dict[str, tuple[str, ...]] = {
    "tokens, masks": ("rows", "recorded", "lengths", "mask"),
    "rollouts, tasks": ("messages", "episode", "observation", "group", "tasks", "data"),
    "rewards": ("reward", "finite", "advantage"),
    "gradient oracle": ("gradient",),
    "log-probabilities": ("log-probability gap", "sampling", "policy", "old log-probabilities", "reference"),
    "draws": ("siblings", "random state"),
    "optimizer step": ("clipping", "learning rate", "update", "frozen"),
}
"""Kinds of evidence of the audit, by its rules."""
REPLAY = "replay"
"""Evidence that is derived again from what a run left on disk."""
UNHARMED = 2.0
"""Standard errors by which a learning curve must end below the healthy one to be noticed."""


@dataclass(frozen=True)
class Seen:
    """What all evidence says of one bug."""

    fault: Fault
    usual: Mapping[str, bool]
    """By kind, whether it shows the bug."""
    ours: Mapping[str, int | None]
    """By kind, the optimizer step at which it shows the bug; 0: after the training; null: it does not."""
    in_half_precision: bool | None
    """Whether anything of ours shows it when the training is in bf16; null if that was not tried."""
    success: float | None
    """After forty steps, mean over seeds; null without curves."""
    healthy: float | None
    """The healthy trainer's with the same settings."""
    training: tuple[float, ...]
    healthy_training: tuple[float, ...]
    ended: str

    @property
    def caught(self) -> bool:
        """Whether anything of ours shows it."""
        return any(step is not None for step in self.ours.values())

    @property
    def looks_well(self) -> bool:
        """Whether nothing that is usually looked at shows it."""
        return not any(self.usual.values())


def seen(made: SilentBugs) -> list[Seen]:
    """Return what all evidence says, bug by bug, in the order of the catalogue."""
    studies = {(each.fault, each.precision): each for each in made.studies}
    curves: dict[str, list[Curve]] = {}
    for each in made.curves:
        curves.setdefault(each.fault, []).append(each)
    return [
        _seen(fault, studies[fault.name, "fp32"], studies.get((fault.name, "bf16")), curves)
        for fault in CATALOGUE.values()
        if (fault.name, "fp32") in studies
    ]


def settings_key(name: str) -> str:
    """Return what a bug's long training has in common with that of its healthy trainer."""
    fault = CATALOGUE[name.removeprefix(f"{HEALTHY} of ")]
    return f"{fault.gym.__name__} {sorted({**fault.settings, **CURVE}.items())}"


def _seen(fault: Fault, study: Study, half: Study | None, curves: Mapping[str, list[Curve]]) -> Seen:
    own = curves.get(fault.name, [])
    healthy = [
        curve
        for name, several in curves.items()
        if name.startswith(HEALTHY) and settings_key(name) == settings_key(fault.name)
        for curve in several
    ]
    success, due = _mean(own), _mean(healthy)
    harmed = success is not None and due is not None and due - success > UNHARMED * _error(own, healthy)
    naive = study.naive
    usual = {
        "tensors changed": naive is None or not naive.tensors_changed,
        "gradients": naive is None or not naive.gradients,
        "base unchanged": naive is None or not naive.base_unchanged,
        "learning curve": harmed or any(curve.ended != "completed" for curve in own),
    }
    ours: dict[str, int | None] = {
        kind: min((study.found[rule] for rule in rules if rule in study.found), default=None)
        for kind, rules in RULES.items()
    }
    ours[REPLAY] = 0 if study.claims else None
    return Seen(
        fault=fault,
        usual=usual,
        ours=ours,
        in_half_precision=None if half is None else bool(half.found or half.claims),
        success=success,
        healthy=due,
        training=_together(own),
        healthy_training=_together(healthy),
        ended=study.ended,
    )


def _mean(curves: list[Curve]) -> float | None:
    return sum(curve.success for curve in curves) / len(curves) if curves else None


def _error(own: list[Curve], healthy: list[Curve]) -> float:
    """Return the standard error of the difference of two means, over seeds where there are several."""
    total = 0.0
    for curves in (own, healthy):
        mean = sum(curve.success for curve in curves) / len(curves)
        spread = sum((curve.success - mean) ** 2 for curve in curves) / max(1, len(curves) - 1)
        # Never less than what the finite number of episodes leaves open.
        total += max(spread, mean * (1 - mean) / curves[0].episodes) / len(curves)
    return sqrt(total)


def _together(curves: list[Curve]) -> tuple[float, ...]:
    """Return the mean training success by step, over seeds, as far as all of them went."""
    steps = zip(*(curve.training for curve in curves), strict=False)
    return tuple(sum(step) / len(step) for step in steps)
