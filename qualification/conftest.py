"""What all checks share: short marks and fixtures, hypothesis without luck or clock, and defects for ``--broken``."""

from gymqual.gyms import loaded

# Checks import the gyms: what is executed of them goes on record, see ``gymqual.plugin``.
loaded.install()

from pathlib import Path

import pytest
from hypothesis import settings

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin import attestation
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import Planted
from gymqual.harness.plugin.run import Run
from gymqual.harness.records import manifest
from gymqual.harness.report import pages
from gymqual.plugin import MARKS
from gymqual.qualification.broken import german
from gymqual.qualification.support.commands import run_pytest

settings.register_profile("qualification", derandomize=True, deadline=None, database=None)
settings.load_profile("qualification")


SHORT = {name.partition("(")[0] for name in MARKS}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_itemcollected(item: pytest.Item) -> None:
    # The plugin reads the long names alone: the short ones may mean anything in another project.
    for mark in list(item.iter_markers()):
        if mark.name in SHORT:
            item.add_marker(getattr(pytest.mark, f"gymqual_{mark.name}")(*mark.args))


@pytest.fixture(scope="session")
def run(gymqual_run: Run) -> Run:
    """The run that goes on record."""
    return gymqual_run


@pytest.fixture
def evidence(gymqual_evidence: Evidence) -> Evidence:
    """The evidence of this check."""
    return gymqual_evidence


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
    pages.write(folder)
    return folder
