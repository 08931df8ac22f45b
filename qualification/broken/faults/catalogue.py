"""What is known of a planted trainer bug, and how one is entered into the catalogue."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymqual.gyms.local import LocalGym
from gymqual.trainer.grpo.trainer import GymTrainer


@dataclass(frozen=True)
class Fault:
    """One bug on the real TRL trainer."""

    trainer: type[GymTrainer]
    check: str
    """The check of the suite whose job it is to stop it; empty where no evidence of ours shows it."""
    rules: tuple[str, ...]
    """The audit's rules that it breaks; the first is the one that stops the run."""
    claims: tuple[str, ...] = ()
    """Claims of the replay that must break where no rule of the audit sees it."""
    resembles: str = ""
    """Public report of such a bug."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the training in which it shows, beside the usual ones; the healthy trainer is let through with the same."""
    gym: type[LocalGym] = LocalGym

    @property
    def name(self) -> str:
        """Name of the bug."""
        return self.trainer.__name__

    @property
    def models(self) -> str:
        """What it models, in a sentence."""
        return (self.trainer.__doc__ or "").split("\n")[0]


CATALOGUE: dict[str, Fault] = {}


def fault(check: str, *rules: str, **known: Any) -> Callable[[type[GymTrainer]], type[GymTrainer]]:
    """Enter a trainer class into the catalogue, with the rules that it breaks."""

    def enter(trainer: type[GymTrainer]) -> type[GymTrainer]:
        CATALOGUE[trainer.__name__] = Fault(trainer, check, rules, **known)
        return trainer

    return enter
