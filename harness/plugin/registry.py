"""The registry of documented checks.

    @check("NEMO-S-08", broken="verdict_follows_last_answer")
    def test_the_verdict_never_changes_once_given(nemo, evidence):
        \"""A second verification MUST return the first verdict, whatever it states.\"""

The id is public and never reused. The docstring's first paragraph is the MUST. ``broken`` names the
defect, known to the package's ``defect`` fixture, that this check must flag: with ``--broken`` the plugin
runs the same body against it and inverts the outcome. ``also`` names further ones, of which the same holds.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

_ID = re.compile(r"[A-Z]+(-[A-Z]+)*-[0-9]{2}")


@dataclass(frozen=True)
class Check:
    """One documented check."""

    id: str
    must: str
    broken: str
    test: str
    """``module:function``, where the check's body stands."""
    also: tuple[str, ...] = ()
    """Further defects that it must flag."""

    @property
    def defects(self) -> tuple[str, ...]:
        """Every defect that this check must flag."""
        return (self.broken, *self.also)


@dataclass(frozen=True)
class Planted:
    """A defect planted into the subject of one check, in a run with ``--broken``."""

    defect: str
    must_flag: bool
    """True for the check's own defect; False for its neighbour's, which must not disturb it."""

    @property
    def label(self) -> str:
        """Part of the test's id."""
        return f"{'flags' if self.must_flag else 'unharmed by'} {self.defect}"


REGISTRY: dict[str, Check] = {}


def check(check_id: str, *, broken: str, also: tuple[str, ...] = ()) -> Callable[[Test], Test]:
    """Register a test function or a state machine's TestCase as a documented check.

    Raises ValueError for a malformed or reused id, or a test without a MUST.
    """

    def register(test: Test) -> Test:
        must = " ".join((inspect.getdoc(test) or "").split("\n\n")[0].split())
        where = f"{test.__module__}:{test.__name__}"
        known = REGISTRY.get(check_id)
        if not _ID.fullmatch(check_id):
            raise ValueError(f"check id {check_id!r}: write it like NEMO-S-01")
        if "MUST" not in must:
            raise ValueError(f"{check_id}: the first paragraph of the docstring states the MUST")
        if known is not None and known.test != where:
            raise ValueError(f"{check_id} is already the id of {known.test}")
        REGISTRY[check_id] = test.__dict__["gymqual_check"] = Check(check_id, must, broken, where, also)
        return test

    return register


def explain(*, subject: str, expected: object, got: object, cause: str) -> str:
    """Word a failed assertion: what was examined, what was expected, what came, and the likely cause."""
    return f"{subject}\n  expected: {expected}\n  got:      {got}\n  likely:   {cause}"
