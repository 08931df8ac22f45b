"""How a rule of the audit is asked: what it returns, or how it refuses."""

from collections.abc import Callable

from gymqual.trainer.runs.errors import AuditError


def outcome(rule: Callable[[], object]) -> object:
    """What a rule returns, or how it refuses: the rule's name and where."""
    try:
        return rule()
    except AuditError as error:
        return str(error).partition(":")[0]
