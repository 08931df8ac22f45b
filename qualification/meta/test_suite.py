"""The suite itself: complete, able to fail, isolated, and what it says of itself is true."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from gymqual.__main__ import COMMANDS
from gymqual.harness.plugin.registry import REGISTRY, explain
from gymqual.harness.records import manifest
from gymqual.harness.records.files import ROOT
from gymqual.harness.stacks.environments import find_stack
from gymqual.harness.stacks.specs import STACKS
from gymqual.qualification.support import catalogue

pytestmark = pytest.mark.self_test

GYM_SDKS = ("nemo_gym", "ray", "vllm", "openenv", "verifiers")


def test_the_readme_lists_the_registry() -> None:
    """The README's table MUST be the registry, word for word."""
    table = catalogue.table()
    assert table in (ROOT / "README.md").read_text(encoding="utf-8"), explain(
        subject="table of documented checks in README.md",
        expected=table,
        got="another table",
        cause="a check changed; paste what `gymqual checks` prints",
    )


DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/architecture.md",
    "gyms/README.md",
    "trainer/README.md",
    "reports/README.md",
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_of_a_document_leads_somewhere(document: str) -> None:
    """Every relative link MUST lead to a file, and to a heading of it where it names one."""
    path = ROOT / document
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        if "://" not in link and (not target.exists() or (anchor and anchor not in _anchors(target))):
            dead.append(link)
    assert dead == [], explain(
        subject=f"links of {document} that lead nowhere",
        expected=[],
        got=dead,
        cause="a file was moved, or a heading worded anew",
    )


def _anchors(path: Path) -> set[str]:
    """Return the anchors that a Markdown file's headings get."""
    headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_module_that_a_document_runs_is_there() -> None:
    """Every ``python -m MODULE``, ``gymqual COMMAND`` and ``make TARGET`` in the documents MUST name one there is."""
    texts = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    code = "\n".join(span for _, span in re.findall(r"(?s)(`+)(?!`)(.+?)(?<!`)\1(?!`)", texts))
    modules = set(re.findall(r"-m (gymqual[\w.]*)", code))
    # No command follows on a folder that make is sent to, or on an import; bench alone stands for its family.
    commands = set(re.findall(r"(?<![\w-])(?<!-C )(?<!from )gymqual ((?:bench )?[a-z][a-z-]*)", code))
    known = {command.name for command in COMMANDS}
    targets = set(re.findall(r"(?m)^make (?:-\S+ )*([a-z-]+)", texts))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    absent = [each for each in sorted(modules) if find_spec(each) is None]
    absent += sorted(commands - known - {name.partition(" ")[0] for name in known})
    absent += [each for each in sorted(targets) if not re.search(rf"(?m)^[^\n:]*\b{each}\b[^\n:]*:", makefile)]
    assert (len(modules) > 1, len(commands) > 15, len(targets) > 3, absent) == (True, True, True, []), explain(
        subject="modules, commands and targets that documents name: many, and those that are not there",
        expected=(True, True, True, []),
        got=(sorted(modules), sorted(commands), sorted(targets), absent),
        cause="a command was renamed",
    )


def test_the_committed_schema_is_the_models() -> None:
    """``reports/schema/manifest.schema.json`` MUST be the schema of the manifest that is written."""
    committed = (ROOT / "reports/schema/manifest.schema.json").read_bytes()
    assert committed == manifest.schema(), explain(
        subject="reports/schema/manifest.schema.json",
        expected="what gymqual.harness.records.manifest.schema() returns",
        got="another schema",
        cause="the manifest's models changed; write the schema again",
    )


def test_every_check_asserts_once_and_names_a_known_defect() -> None:
    """A documented check MUST hold exactly one assertion, and a broken subject it can be tried against."""
    catalogue.table()
    files = [file for file in (ROOT / "qualification/broken").glob("*.py") if file.name != "canaries.py"]
    defects = "".join(file.read_text(encoding="utf-8") for file in files)
    wrong = []
    for check in REGISTRY.values():
        module, _, name = check.test.partition(":")
        body = ast.parse(inspect.getsource(getattr(import_module(module), name)))
        asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(body))
        unknown = [name for name in check.defects if not (f"def {name}(" in defects or f'"{name}"' in defects)]
        # A state machine asserts in its rules and is run by one call.
        if (asserts != 1 and "run_state_machine_as_test" not in ast.dump(body)) or unknown:
            wrong.append((check.id, f"{asserts} assertions", unknown or "defects known"))
    assert wrong == [], explain(
        subject="documented checks",
        expected="one assertion each, with explain(), and a defect in qualification/broken",
        got=wrong,
        cause="a check examines two things, or has never been seen to fail",
    )


def test_the_plugin_loads_no_torch() -> None:
    """Importing the plugin MUST NOT load torch: qualifying a gym without training needs none."""
    question = "import sys, gymqual.harness.plugin.hooks; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", question], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "False", explain(
        subject="torch after importing gymqual.harness.plugin.hooks in a fresh process",
        expected="False",
        got=answer.stdout.strip(),
        cause="a module of the harness imports the trainer",
    )


def test_the_checks_environment_holds_no_gym_sdk() -> None:
    """The environment of checks and trainer MUST NOT hold a gym SDK."""
    found = [name for name in GYM_SDKS if find_spec(name) is not None]
    assert found == [], explain(
        subject="gym SDKs importable beside the checks",
        expected=[],
        got=found,
        cause="something was installed into the wrong environment",
    )


@pytest.mark.parametrize("gym", [pytest.param(gym, marks=pytest.mark.gym(gym)) for gym in STACKS])
def test_a_stack_holds_no_torch_and_nothing_of_ours(gym: str) -> None:
    """A gym's environment MUST NOT hold torch, nor any of our packages."""
    question = (
        "from importlib.util import find_spec as f; print([n for n in ('torch', 'gymqual', 'harness', 'gyms') if f(n)])"
    )
    answer = subprocess.run(
        [find_stack(gym).python, "-P", "-c", question],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
        env={},
    )
    assert answer.stdout.strip() == "[]", explain(
        subject=f"packages importable in the {gym} stack",
        expected="[]",
        got=answer.stdout.strip(),
        cause="the lock takes in more than the gym, or PYTHONPATH leaks",
    )
