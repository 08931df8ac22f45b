"""What all checks share: hypothesis without luck or clock, and in-process defects for ``--broken``."""

import pytest
from hypothesis import settings

from harness.plugin import Planted
from qualification.broken import german

settings.register_profile("qualification", derandomize=True, deadline=None, database=None)
settings.load_profile("qualification")


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Planted | None:
    """The defect planted for this test: a patch of the core in this process."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is not None:
        german.DEFECTS[planted.defect](monkeypatch)
    return planted
