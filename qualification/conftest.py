"""What all checks share: hypothesis without luck or clock, and in-process defects for ``--broken``."""

from pathlib import Path

import pytest
from hypothesis import settings

from gyms.german_orders import GermanOrders
from harness import attestation, manifest, report
from harness.checks import Planted
from qualification.broken import german
from qualification.commands import run_pytest

settings.register_profile("qualification", derandomize=True, deadline=None, database=None)
settings.load_profile("qualification")


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Planted | None:
    """The defect planted for this test: a patch of the core in this process."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is not None:
        german.DEFECTS[planted.defect](monkeypatch)
    return planted


@pytest.fixture
def orders() -> GermanOrders:
    """The task set, replayed in this process."""
    return GermanOrders()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a real run of a few checks that need no gym."""
    reports = tmp_path_factory.mktemp("reports")
    ran = run_pytest("--reports", reports, "qualification/german/test_arithmetic.py", "-k", "number or floor")
    assert ran.returncode == 0, ran.stdout
    (folder,) = reports.iterdir()
    # A run of these checks alone attaches no file; one is added as a check would have, and sealed anew.
    evidence = folder / "evidence" / "TASK-01" / "values.json"
    evidence.parent.mkdir(parents=True)
    evidence.write_text('{"values": 3}\n')
    manifest.write(manifest.read(folder).model_copy(update={"files": manifest.list_files(folder)}), folder)
    attestation.write(folder)
    report.write(folder)
    return folder
