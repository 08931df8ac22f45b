"""Selection and inversion: what runs, what counts as flagged, and which stack is taken."""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest

from gymqual.harness.plugin import selection
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.manifest import read
from gymqual.harness.stacks import environments, specs
from gymqual.qualification.support.commands import run_pytest

pytestmark = pytest.mark.self_test

# One check for each way a body can end under a defect.
PROJECT = '''
import pytest
from gymqual.harness.plugin.registry import check

BROKEN = []

@pytest.fixture(autouse=True)
def defect(request):
    BROKEN[:] = [request.param.defect] if hasattr(request, "param") else []

@check("DEMO-01", broken="fails")
def test_asserts():
    """It MUST hold."""
    assert "fails" not in BROKEN, "own assertion"

@check("DEMO-02", broken="passes")
def test_notices_nothing():
    """It MUST hold."""
    assert True

@check("DEMO-03", broken="raises")
def test_raises():
    """It MUST hold."""
    if "raises" in BROKEN:
        raise RuntimeError("somewhere else")

@check("DEMO-04", broken="times_out")
def test_fails_elsewhere():
    """It MUST hold."""
    if "times_out" in BROKEN:
        pytest.fail("not an assertion of this file")

@check("DEMO-05", broken="fails")
def test_is_disturbed():
    """It MUST hold."""
    assert not BROKEN, "own assertion"

@check("DEMO-06", broken="fails", also=("fails_too", "passes_too"))
def test_owns_several():
    """It MUST hold."""
    assert "fails" not in BROKEN and "fails_too" not in BROKEN, "own assertion"
'''


def test_only_a_checks_own_assertion_counts_as_flagged(tmp_path: Path) -> None:
    """With ``--broken`` an assertion of the check MUST count as flagged; passing or any other end MUST NOT."""
    (tmp_path / "test_demo.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    run_pytest(
        "--gymqual-broken", "--gymqual-reports", tmp_path / "reports", "--rootdir", tmp_path, tmp_path / "test_demo.py"
    )
    (folder,) = (tmp_path / "reports").iterdir()
    outcomes = {f"{record.id} {record.defect}": record.outcome for record in read(folder).checks}
    expected = {
        "DEMO-01 flags fails": "passed",
        "DEMO-01 unharmed by passes": "passed",
        "DEMO-02 flags passes": "failed",
        "DEMO-02 unharmed by raises": "passed",
        "DEMO-03 flags raises": "failed",
        "DEMO-03 unharmed by times_out": "passed",
        "DEMO-04 flags times_out": "failed",
        "DEMO-04 unharmed by fails": "passed",
        "DEMO-05 flags fails": "passed",
        "DEMO-05 unharmed by fails_too": "failed",
        "DEMO-05 unharmed by passes_too": "failed",
        "DEMO-06 flags fails": "passed",
        "DEMO-06 flags fails_too": "passed",
        "DEMO-06 flags passes_too": "failed",
    }
    assert outcomes == expected, explain(
        subject="outcomes of checks under their own and their neighbour's defect",
        expected=expected,
        got=outcomes,
        cause="an error, a time-out or a pass is taken for the check's own assertion",
    )


def test_a_gym_selects_its_own_checks_alone() -> None:
    """``--gym nemo`` MUST deselect every check of no gym, and leave all of the gym's."""
    listed = run_pytest("--collect-only", "--gym", "nemo", "-m", "cpu_smoke").stdout
    seen = ("qualification/german/" in listed, listed.count("test_service.py::"), listed.count("test_client.py::"))
    assert seen == (False, 11, 9), explain(
        subject="gym-free checks, service checks and client checks selected by --gym nemo",
        expected=(False, 11, 9),
        got=seen,
        cause="selection looks at marks only, or drops what it should keep",
    )


def test_fewer_checks_than_registered_are_no_qualification(tmp_path: Path) -> None:
    """A run of one file of a gym's checks MUST NOT be called qualified: the others have no record."""
    ran = run_pytest("--reports", tmp_path, "qualification/nemo/test_service.py", "-k", "verdict_never_changes")
    said = [line for line in ran.stdout.splitlines() if "QUALIFIED" in line]
    missing = all(check in said[0] for check in ("NEMO-C-01", "NEMO-S-01")) if said else False
    assert (len(said), said[0].startswith("NOT QUALIFIED") if said else None, missing) == (1, True, True), explain(
        subject="verdict of a run of one NeMo check",
        expected="NOT QUALIFIED, naming the checks without a record",
        got=said or ran.stdout[-1500:],
        cause="only checks of collected files are registered",
    )


NEEDS_DATA = """
import pytest

@pytest.mark.gymqual_needs_data("GYMQUAL_DEMO")
def test_demo_data():
    pass

def test_without_data():
    pass
"""


@pytest.mark.parametrize(
    ("where", "arguments", "environment", "collected"),
    [
        ("test_demo.py", (), {}, 1),
        ("test_demo.py", (), {"GYMQUAL_DEMO": "/somewhere"}, 2),
        ("test_demo.py", ("-k", "demo_data"), {}, 1),
        ("test_demo.py", ("-m", "gymqual_needs_data"), {}, 1),
        ("test_demo.py::test_demo_data", (), {}, 1),
        ("test_demo.py", ("-k", "other"), {}, 0),
    ],
)
def test_a_check_without_its_data_is_left_out_unless_named(
    tmp_path: Path, where: str, arguments: tuple[str, ...], environment: dict[str, str], collected: int
) -> None:
    """A check whose data variable is not set MUST be deselected, but selected where it is asked for by name."""
    (tmp_path / "test_demo.py").write_text(NEEDS_DATA)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    awake = f"--gymqual-reports={tmp_path / 'reports'}"
    ran = run_pytest("--collect-only", awake, "--rootdir", tmp_path, tmp_path / where, *arguments, **environment)
    listed = ran.stdout
    assert listed.count("test_demo.py::") == collected, explain(
        subject=f"checks collected of {where} with {arguments} and {environment}",
        expected=collected,
        got=listed,
        cause="the mark is not looked at, or a name is not taken for a wish",
    )


def test_optional_checks_are_not_demanded() -> None:
    """A run without the optional checks of a gym MUST NOT lack their records, and MUST lack those of all others."""
    demanded = selection.documented("verifiers", import_module("qualification.verifiers").__name__)
    assert demanded == {f"VF-S-0{number}" for number in range(1, 8)}, explain(
        subject="checks of the Verifiers gym that every run of one of them must have a record of",
        expected="VF-S-01 to VF-S-07",
        got=sorted(demanded),
        cause="the mark optional is not looked at, or another module of checks is passed over",
    )


@pytest.mark.gym("nemo")
def test_a_stack_of_another_lock_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete stack that was built from another lock MUST count as not set up."""
    built = environments.find_stack("nemo")
    marker = tmp_path / "stacks" / "nemo-other" / "complete.json"
    marker.parent.mkdir(parents=True)
    fields = {**vars(built), "flags": list(built.flags), "lock_sha256": "0" * 64}
    marker.write_text(json.dumps(fields))
    monkeypatch.setenv("GYMQUAL_CACHE", str(tmp_path))
    with pytest.raises(NotTestable) as refused:
        environments.find_stack("nemo")
    assert "gymqual setup nemo" in str(refused.value), explain(
        subject="a stack whose lock has changed since",
        expected="not set up, with the command",
        got=str(refused.value),
        cause="stacks are found by name alone",
    )


@pytest.mark.gym("openenv")
def test_an_environment_that_holds_the_gym_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named interpreter that holds the gym MUST be used as it is, as a deviation that names what differs."""
    _named_with_a_lock(tmp_path, monkeypatch, "openenv==0.9.0\nfastapi==0.0.1\n")
    taken = environments.find_stack("openenv")
    seen = (taken.python, "fastapi" in (taken.deviation or ""), "openenv" in (taken.deviation or ""))
    assert seen == (os.environ["GYMQUAL_OPENENV_PYTHON"], True, False), explain(
        subject="(interpreter, a package that differs is named, one that does not is not)",
        expected="the named one, True, False",
        got=(seen, taken.deviation),
        cause="a stack is built beside it, or its packages are not compared with the lock",
    )


@pytest.mark.gym("openenv")
def test_an_environment_with_another_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named interpreter that holds another release of the gym MUST be refused with both versions."""
    _named_with_a_lock(tmp_path, monkeypatch, "openenv==0.9.1\n")
    with pytest.raises(HarnessError) as refused:
        environments.find_stack("openenv")
    assert "holds openenv 0.9.0, 0.9.1 is examined" in str(refused.value), explain(
        subject="an environment of another release",
        expected="both versions",
        got=str(refused.value),
        cause="whatever release is there is taken",
    )


def _named_with_a_lock(folder: Path, monkeypatch: pytest.MonkeyPatch, lock: str) -> None:
    """Name the built stack's interpreter, as a machine's own, and let another lock be what it is compared with."""
    built = environments.find_stack("openenv")
    (folder / "requirements").mkdir()
    (folder / "requirements" / "openenv.lock").write_text(lock)
    monkeypatch.setattr(specs, "ROOT", folder)
    monkeypatch.setenv("GYMQUAL_OPENENV_PYTHON", built.python)
