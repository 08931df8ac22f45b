"""What runs the suite for others, hooks before a commit and CI, is valid and runs what the documents say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gymqual import __version__
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.commands import run_gymqual

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


WORKFLOWS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").glob("*/*.yml"))


@pytest.mark.parametrize("schema", ["vendor.github-workflows", "custom.github-workflows-require-timeout"])
def test_every_workflow_is_valid(tmp_path: Path, schema: str) -> None:
    """Every workflow, the users' example included, MUST be valid GitHub Actions, each job with a time limit."""
    said = _ran(TOOLS / "check-jsonschema", "--builtin-schema", schema, *WORKFLOWS, home=tmp_path)
    assert (said.returncode, len(WORKFLOWS)) == (0, 2), explain(
        subject=f"check-jsonschema of {WORKFLOWS} against {schema}",
        expected="exit code 0, two workflows",
        got=said.stdout + said.stderr,
        cause="a misspelt key, or one at the wrong place",
    )


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_writes_nothing_and_takes_known_actions(workflow: str) -> None:
    """A workflow MUST have read permission alone, and MUST call GitHub's own actions, each by its major version."""
    content = yaml.safe_load((ROOT / workflow).read_text())
    used = {step["uses"] for job in content["jobs"].values() for step in job["steps"] if "uses" in step}
    strange = sorted(action for action in used if not re.fullmatch(r"actions/[a-z-]+@v[0-9]+", action))
    rights = [content["permissions"], *(job.get("permissions", {}) for job in content["jobs"].values())]
    assert (strange, [right for right in rights if right]) == ([], [{"contents": "read"}]), explain(
        subject=f"actions that are not GitHub's own or have no version, and permissions, in {workflow}",
        expected=([], [{"contents": "read"}]),
        got=(strange, rights),
        cause="a stranger's code, or more rights than a qualification needs",
    )


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_runs_what_there_is(workflow: str) -> None:
    """A make target, command, script or lock that a workflow names MUST exist."""
    text = (ROOT / workflow).read_text()
    made = (shlex.split(re.sub(r"\$\{\{.*?\}\}|-C \w+", "", line)) for line in re.findall(r"run: make (.*)", text))
    goals = {word for words in made for word in words if "=" not in word}
    makefile = (ROOT / "Makefile").read_text()
    missing = [goal for goal in goals if not re.search(rf"^{goal}\b.*:", makefile, re.MULTILINE)]
    commands = set(re.findall(r"\.venv/bin/gymqual (\w+)", text))
    missing += [name for name in commands if run_gymqual(name, "--help").returncode]
    locks = set(re.findall(r"(?<!gymqual/)\brequirements/[a-z]+\.lock", text))
    missing += [path for path in {*locks, *re.findall(r"\.ci/\w+", text)} if not (ROOT / path).exists()]
    assert (missing, bool(goals), len(commands)) == ([], True, 2), explain(
        subject=f"make targets, commands, scripts and locks of {workflow}",
        expected="all there",
        got=missing,
        cause="something was renamed, and CI was not told",
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
