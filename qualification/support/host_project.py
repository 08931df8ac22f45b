"""A project of somebody else that gymqual is installed into, as a wheel or from a source distribution."""

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from gymqual.harness.records.errors import NotTestable
from gymqual.harness.records.files import ROOT

HOST = ROOT / "build" / "host"
"""Holds the oldest versions of what the product needs, an older pytest, and no torch."""
LIMIT_S = 240

CONFTEST = """
import pytest

def pytest_addoption(parser):
    for option in ("--policy", "--gym", "--reports", "--broken"):
        parser.addoption(option, default="the project's own")

@pytest.fixture
def run():
    return "the project's own"
"""

OWN_TESTS = """
import sys

import harness
import pytest
import trainer

@pytest.mark.gym
@pytest.mark.slow
def test_names_are_the_projects(run, pytestconfig):
    assert (harness.OWNER, trainer.OWNER, run) == ("project",) * 2 + ("the project's own",)
    assert pytestconfig.getoption("--policy") == "the project's own"

def test_nothing_of_gymqual_is_loaded():
    loaded = [name for name in sys.modules if name.startswith("gymqual.")]
    finders = [type(finder).__module__ for finder in sys.meta_path if not isinstance(finder, type)]
    assert (loaded, [name for name in finders if "gymqual" in name]) == (["gymqual.plugin"], [])
"""

OWN_CHECK = '''
from gymqual import check, explain

@check("HOST-01", broken="says_three")
def test_two_and_two_are_four(gymqual_evidence):
    """Two and two MUST be four."""
    gymqual_evidence.measure(total=2 + 2)
    assert 2 + 2 == 4, explain(subject="2 + 2", expected=4, got=2 + 2, cause="another arithmetic")
'''

SETTINGS = """[pytest]
addopts = -p no:cacheprovider --strict-markers --strict-config
filterwarnings = error
markers =
    gym: the project's own
    slow: the project's own
"""


@dataclass(frozen=True)
class HostProject:
    """A folder with packages and options of gymqual's names, and an environment that holds gymqual."""

    folder: Path

    @property
    def environment(self) -> Path:
        """The virtual environment."""
        return self.folder / "env"

    def command(self, program: str, *arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment to its end, in the project's folder."""
        return _run([self.environment / "bin" / program, *arguments], self.folder, variables)


def build(folder: Path) -> list[Path]:
    """Build wheel and source distribution of this checkout; return them, the wheel last."""
    hatchling = Path(sys.executable).with_name("hatchling")
    done = _run([hatchling, "build", "-d", folder], ROOT, {})
    if done.returncode:
        raise NotTestable(f"nothing was built: {done.stderr[-500:]}")
    return sorted(folder.iterdir(), key=lambda path: path.suffix)


def host_project(folder: Path, distribution: Path) -> HostProject:
    """Make a project with an environment of its own and install a distribution there, without a download."""
    if not (HOST / ".ready").exists():
        raise NotTestable("build/host is not set up; run: make setup-host")
    for package in ("harness", "trainer"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text('OWNER = "project"\n')
    for name, content in {
        "conftest.py": CONFTEST,
        "pytest.ini": SETTINGS,
        "test_own.py": OWN_TESTS,
        "test_check.py": OWN_CHECK,
    }.items():
        (folder / name).write_text(content)
    project = HostProject(folder)
    venv.create(project.environment, symlinks=True)
    site = f"lib/python{sysconfig.get_python_version()}/site-packages"
    (project.environment / site / "host.pth").write_text(f"{HOST / site}\n")
    done = _run(
        [
            *(HOST / "bin/python", "-m", "pip", "--python", project.environment / "bin/python", "--quiet", "install"),
            # Of the oldest versions that the ranges admit, which are there.
            *("--disable-pip-version-check", "--no-index", "--no-build-isolation", distribution),
        ],
        folder,
        {},
    )
    if done.returncode:
        raise NotTestable(f"{distribution.name} cannot be installed: {done.stderr[-800:]}")
    return project


def _run(command: list[str | Path], folder: Path, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "GYMQUAL"))}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**kept, "COLUMNS": "200", "NO_COLOR": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
