"""Fixtures of the Verifiers checks: the lab that plays rollouts, healthy or under a planted defect."""

from collections.abc import Iterator

import pytest

from harness.checks import Planted
from harness.run import Run
from qualification.broken import verifiers_rules
from qualification.verifiers.lab import Lab


@pytest.fixture(scope="session")
def shared_lab(run: Run, pytestconfig: pytest.Config) -> Lab:
    """The lab that all checks share: a run that one check played is there for the next."""
    return Lab(run, pytestconfig.option.inference_url)


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """The lab, under the defect planted for this test."""
    return shared_lab


@pytest.fixture(autouse=True)
def defect(
    request: pytest.FixtureRequest, shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planted | None]:
    """The defect planted for this test: another environment for every run that is played under it, or other rules."""
    planted: Planted | None = getattr(request, "param", None)
    shared_lab.defect = planted.defect if planted else ""
    if shared_lab.defect in verifiers_rules.DEFECTS:
        verifiers_rules.DEFECTS[shared_lab.defect](monkeypatch)
    yield planted
    shared_lab.defect = ""
