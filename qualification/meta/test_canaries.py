"""The catalogue of canaries is kept: each has, in each gym, a check that is run against it and must flag it."""

import sys

import pytest

from gymqual.harness.plugin.registry import REGISTRY, explain
from gymqual.qualification.broken.canaries import CANARIES
from gymqual.qualification.support import catalogue

pytestmark = pytest.mark.self_test

GYMS = {"nemo", "openenv"}


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_has_an_owner_in_every_gym(name: str) -> None:
    """In each gym a check of that gym MUST be registered with the canary's defect, so that ``--broken`` proves it."""
    catalogue.table()
    owners = CANARIES[name].owners
    wrong = {
        gym: (check_id, defect)
        for gym, (check_id, defect) in owners.items()
        if check_id not in REGISTRY
        or defect not in REGISTRY[check_id].defects
        or not _examines(REGISTRY[check_id].test, gym)
    }
    assert (set(owners), wrong) == (GYMS, {}), explain(
        subject=f"owners of the canary {name}: gyms; those whose check is not run against the defect",
        expected=(GYMS, {}),
        got=(set(owners), wrong),
        cause="a check lost a defect, or a gym was added without a check of this fault",
    )


def _examines(test: str, gym: str) -> bool:
    marks = getattr(sys.modules[test.partition(":")[0]], "pytestmark", [])
    return any((mark.name, mark.args) == ("gym", (gym,)) for mark in marks)
