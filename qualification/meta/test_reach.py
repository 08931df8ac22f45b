"""What ``make quick`` runs: the tests that a change reaches, nearest first, as far as a minute goes."""

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.qualification.support.reach import Reached, chosen, reached

pytestmark = pytest.mark.self_test

NEAREST = {
    "harness/records/compare.py": "qualification/meta/test_compare.py",
    "trainer/audit/data_order.py": "qualification/meta/training/test_audit_order.py",
    "gyms/german/calculator.py": "qualification/german/test_arithmetic.py",
    "requirements/nemo.lock": "qualification/meta/test_selection.py",
    "README.md": "qualification/meta/test_suite.py",
}


@pytest.mark.parametrize("file", NEAREST)
def test_the_nearest_tests_of_a_change_come_first(file: str) -> None:
    """The tests that import what was changed MUST come before those that reach it by other modules."""
    found = reached([file])
    nearest = [test.file for test in found if test.distance <= found[0].distance]
    ordered = found == sorted(found)
    assert (NEAREST[file] in nearest, ordered) == (True, True), explain(
        subject=f"tests next to {file}, and whether all are in the order of their distance",
        expected=(NEAREST[file], True),
        got=(nearest, ordered),
        cause="an import is not seen, or a file of another kind stands for no module",
    )


def test_what_nothing_imports_reaches_nothing() -> None:
    """A file that no module reads MUST reach no test."""
    found = reached(["reports/README.txt"])
    assert found == [], explain(
        subject="tests that a file reaches which nothing imports", expected=[], got=found, cause="a wild guess"
    )


def test_a_budget_is_kept_and_the_rest_counted() -> None:
    """No more MUST be chosen than fits, nearest first, and what is left MUST be counted."""
    file = "qualification/meta/test_compare.py"
    names = chosen([Reached(1, file)], {}, budget_s=1000)[0]
    taken = {names[0]: 5.0, names[1]: 100.0, **dict.fromkeys(names[2:], 1.0)}
    kept, over = chosen([Reached(1, file)], taken, budget_s=7.0)
    expected = ([names[0], *names[2:4]], len(names) - 3)
    assert (kept, over) == expected, explain(
        subject="tests of 5, 100 and several of 1 second that fit into 7, and how many do not",
        expected=expected,
        got=(kept, over),
        cause="a long test ends the choice, or is taken although it does not fit",
    )
