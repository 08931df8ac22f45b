"""gymqual installs beside anything: one package, one command, and no trace in a suite that does not use it."""

import sysconfig
import zipfile
from pathlib import Path

import pytest

from gymqual import __all__ as public_names
from gymqual.harness.plugin.registry import explain
from gymqual.qualification.support.host_project import HostProject, build, host_project

pytestmark = pytest.mark.self_test


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source distribution and the wheel of this checkout."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module", params=["sdist", "wheel"])
def project(
    request: pytest.FixtureRequest, distributions: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> HostProject:
    """A project that gymqual is installed into."""
    distribution = distributions[request.param == "wheel"]
    return host_project(tmp_path_factory.mktemp(request.param) / "project", distribution)


def test_the_wheel_holds_one_package(distributions: list[Path]) -> None:
    """The wheel MUST install ``gymqual`` alone, with templates, locks, policies, and its mark of types."""
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    due = (
        "py.typed",
        "requirements/nemo.lock",
        "harness/report/templates/page.css",
        "gyms/german/FROZEN.sha256",
        "trainer/policy/embedded/mini/model.safetensors",
    )
    missing = [name for name in due if f"gymqual/{name}" not in names]
    assert (tops, missing) == ({"gymqual"}, []), explain(
        subject="top-level packages of the wheel, and files that it lacks",
        expected=({"gymqual"}, []),
        got=(tops, missing),
        cause="hatchling's packages in pyproject.toml, or a link of gymqual/ that is gone",
    )


def test_a_suite_beside_it_is_undisturbed(project: HostProject) -> None:
    """A project's own packages, options, fixtures and marks MUST stay its own, and nothing of ours be loaded."""
    ran = project.command("python", "-m", "pytest", "test_own.py")
    seen = (ran.returncode, "2 passed" in ran.stdout)
    assert seen == (0, True), explain(
        subject="suite of a project with packages trainer and harness, options --policy and --gym, pytest 8.4",
        expected=(0, True),
        got=(seen, ran.stdout[-1500:], ran.stderr[-500:]),
        cause="the installed plugin takes a name that is not its own, or imports more than it needs",
    )


def test_a_check_of_the_project_leaves_a_run_that_verifies(project: HostProject) -> None:
    """A check in somebody's suite MUST go on record, and ``gymqual verify`` MUST hold the run without torch."""
    ran = project.command("python", "-m", "pytest", "--gymqual-reports=reports", "test_check.py")
    (folder,) = (project.folder / "reports").iterdir()
    verified = project.command("gymqual", "verify", folder)
    (folder.parent / folder.name).rename(project.folder / f"verified-{folder.name}")
    folder.parent.rmdir()
    seen = (ran.returncode, verified.returncode, "HOST-01" in ran.stdout, "gymqual[page]" in verified.stdout)
    assert seen == (0, 0, True, True), explain(
        subject="exit codes of pytest and verify; HOST-01 shown; the page said to be not judged",
        expected=(0, 0, True, True),
        got=(seen, ran.stdout[-1500:], verified.stdout[-800:], verified.stderr[-500:]),
        cause="a part of the product needs a package of an extra, or files of the checkout",
    )


def test_the_command_is_there_without_torch(project: HostProject) -> None:
    """``gymqual --help`` MUST work in the bare installation, and what lacks an extra MUST name its install line."""
    helped = project.command("gymqual", "--help")
    lacking = project.command("python", "-c", "from gymqual import attach")
    seen = (helped.returncode, "verify" in helped.stdout, "pip install 'gymqual[train]'" in lacking.stderr)
    assert seen == (0, True, True), explain(
        subject="exit code of gymqual --help; verify in it; the install line where attach lacks torch",
        expected=(0, True, True),
        got=(seen, helped.stderr[-800:], lacking.stderr[-500:]),
        cause="the command imports what only an extra brings",
    )


def test_attach_is_imported_beside_a_trainer_of_the_projects_own(project: HostProject) -> None:
    """Every public name MUST be imported from the installed package where the training libraries are there."""
    program = f"import gymqual, trainer; print(gymqual.__file__, trainer.OWNER, *map(repr, [{_getters()}]))"
    libraries = sysconfig.get_path("purelib")
    ran = project.command("python", "-c", program, PYTHONPATH=libraries, TRL_EXPERIMENTAL_SILENCE="1")
    installed = ran.stdout.startswith(str(project.environment))
    assert (ran.returncode, installed, " project " in ran.stdout) == (0, True, True), explain(
        subject="exit code of importing every public name; gymqual is the installed one; trainer the project's own",
        expected=(0, True, True),
        got=(ran.returncode, ran.stdout[:300], ran.stderr[-800:]),
        cause="a module is imported by a name that only the checkout has",
    )


def _getters() -> str:
    return ", ".join(f"gymqual.{name}" for name in public_names)
