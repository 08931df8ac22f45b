"""What runs the suite for others, hooks before a commit and CI, is valid and runs what the documents say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness import __version__
from harness.checks import explain
from harness.files import ROOT

pytestmark = pytest.mark.self_test

TOOLS = Path(sys.executable).parent
HOOKS = ROOT / ".pre-commit-config.yaml"


def _ran(*command: str | Path, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        # Its cache stands in the home folder otherwise.
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PRE_COMMIT_HOME": str(home / "pre-commit")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_hooks_run_what_lint_runs() -> None:
    """Every command of ``make lint`` MUST be a hook that calls it out of .venv, and nothing MUST be downloaded."""
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    # pre-commit hands over the files itself.
    linted = {line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in recipe[1].splitlines()}
    repositories = yaml.safe_load(HOOKS.read_text())["repos"]
    hooks = {hook["entry"] for repository in repositories for hook in repository["hooks"]}
    foreign = [repository["repo"] for repository in repositories if repository["repo"] != "local"]
    languages = {hook["language"] for repository in repositories for hook in repository["hooks"]}
    assert (hooks, foreign, languages) == (linted, [], {"system"}), explain(
        subject="commands of the hooks, repositories they come from, and their languages",
        expected=(linted, [], {"system"}),
        got=(hooks, foreign, languages),
        cause="lint was changed and the hooks were not",
    )


def test_pre_commit_takes_its_configuration(tmp_path: Path) -> None:
    """pre-commit MUST find the configuration valid, and its hooks MUST pass on this checkout."""
    runs = [("validate-config", HOOKS), ("run", "ruff", "--all-files"), ("run", "ruff-format", "--all-files")]
    said = [_ran(TOOLS / "pre-commit", *run, home=tmp_path) for run in runs]
    assert [ran.returncode for ran in said] == [0, 0, 0], explain(
        subject=f"pre-commit {runs}",
        expected="exit code 0 each",
        got=[ran.stdout + ran.stderr for ran in said],
        cause="a misspelt key, or code that lint refuses",
    )


def test_the_changelog_is_of_this_version() -> None:
    """The changelog MUST name the version that the product says it is."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{re.escape(__version__)}\b", changelog) is not None, explain(
        subject="CHANGELOG.md",
        expected=f"{__version__}, the version of harness/__init__.py",
        got="no mention of it",
        cause="the version was raised without its section",
    )
