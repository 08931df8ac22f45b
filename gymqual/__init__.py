"""Qualification of RL agent gyms: proves a gym, a bridge and a trainer before the GPU weeks are spent.

    from gymqual import attach

    audit = attach(trainer, "trace.jsonl")

Every name of ``__all__`` is imported when it is first used: this module needs the standard library alone, since it is
executed in every gym's server as well.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymqual.gyms.base import (
        Gym,
        GymIdentity,
        InfrastructureError,
        Observation,
        Session,
        TaskSet,
        Verdict,
    )
    from gymqual.harness.plugin.registry import check, explain
    from gymqual.trainer.audit.attach import attach
    from gymqual.trainer.runs.errors import AuditError

__version__ = "0.1.0"

__all__ = [
    "AuditError",
    "Gym",
    "GymIdentity",
    "InfrastructureError",
    "Observation",
    "Session",
    "TaskSet",
    "Verdict",
    "attach",
    "check",
    "explain",
]

_CONTRACT = ("Gym", "GymIdentity", "InfrastructureError", "Observation", "Session", "TaskSet", "Verdict")
_HOMES = {
    **dict.fromkeys(_CONTRACT, "gymqual.gyms.base"),
    **dict.fromkeys(("check", "explain"), "gymqual.harness.plugin.registry"),
    "attach": "gymqual.trainer.audit.attach",
    "AuditError": "gymqual.trainer.runs.errors",
}
"""The module that each public name is defined in."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __name__:
            raise
        raise ModuleNotFoundError(
            f"gymqual.{name} needs {error.name}; run: pip install 'gymqual[train]'", name=error.name
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
