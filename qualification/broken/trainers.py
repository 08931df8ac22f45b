"""The fault catalogue: bugs of trainers, each a few lines on the real TRL trainer, beneath the audit.

Each entry names what it models, a public report of such a bug where one is known, the check whose job it is to stop
it, and the rules of the audit that it breaks. An entry without a check is one that no evidence of ours shows.
"""

from gymqual.qualification.broken.faults import (  # noqa: F401
    losses,
    rewards,
    rollouts,
    sampling,
    tokens,
    updates,
)
from gymqual.qualification.broken.faults.catalogue import CATALOGUE, Fault

__all__ = ["CATALOGUE", "Fault", "of_check"]


def of_check(check: str) -> list[Fault]:
    """Return the faults that a check has to stop."""
    return [fault for fault in CATALOGUE.values() if fault.check == check]
