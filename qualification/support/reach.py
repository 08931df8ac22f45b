"""The tests that a change reaches, nearest first and within a minute; ``make quick`` runs them.

A test is reached if it imports a changed module, by whatever way; the fewer modules lie between, the nearer it is. What
a test takes is read from the newest run in ``reports/``; what does not fit is counted and left to ``make test``.
"""

import ast
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT
from gymqual.harness.records.manifest import JUNIT

BUDGET_S = 45.0
"""Of tests; what pytest itself takes to start and to end comes on top."""
UNKNOWN_S, UNKNOWN_TRAINING_S = 2.0, 15.0
"""What a test is taken to take that no run has recorded."""
FOLDERS = ("gyms", "harness", "trainer", "qualification")
THROUGH_CONFTEST = 100
"""What a step through a conftest adds to a distance: nearly every test has one above it."""
STANDS_FOR = {
    ".j2": "harness/report/document.py",
    ".css": "harness/report/document.py",
    ".js": "harness/report/document.py",
    ".lock": "harness/stacks/environments.py",
    ".md": "qualification/meta/test_suite.py",
    ".yml": "qualification/meta/test_automation.py",
    ".toml": "qualification/meta/test_installation.py",
}
"""Module that reads a file of another kind."""


class Reached(NamedTuple):
    """A test file, and how far it is from a change."""

    distance: int
    file: str


def changed() -> list[str]:
    """Return the changed and new files of the checkout, or where there are none those of the last commit."""
    listed = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return sorted(set(listed)) or _git("diff", "--name-only", "HEAD~1")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise HarnessError(f"git {' '.join(arguments)} failed ({done.stderr.strip()}); run this in a checkout")
    return done.stdout.splitlines()


def reached(files: Iterable[str]) -> list[Reached]:
    """Return the test files that import any of ``files``, nearest first."""
    importers = _importers()
    distances = {STANDS_FOR.get(Path(file).suffix, file): 0 for file in files}
    waiting = deque(distances)
    while waiting:
        file = waiting.popleft()
        step = THROUGH_CONFTEST if file.endswith("conftest.py") else 1
        for importer in importers.get(file, ()):
            if distances[file] + step < distances.get(importer, sys.maxsize):
                distances[importer] = distances[file] + step
                waiting.append(importer)
    return sorted(Reached(far, file) for file, far in distances.items() if Path(file).name.startswith("test_"))


@cache
def _importers() -> Mapping[str, set[str]]:
    """Return by file the files that import it, and the tests below a conftest as importers of that."""
    importers: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            for imported in _imports(path):
                importers.setdefault(imported, set()).add(name)
            if path.name.startswith("test_"):
                for above in path.parents:
                    if (above / "conftest.py").is_file() and above != ROOT:
                        importers.setdefault((above / "conftest.py").relative_to(ROOT).as_posix(), set()).add(name)
    return importers


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.ImportFrom):
            inside = ".".join(path.relative_to(ROOT).parts[: -node.level])
            names = [f"gymqual.{inside}.{node.module or alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            file = f"{name.removeprefix('gymqual.').replace('.', '/')}.py"
            if name.startswith("gymqual.") and (ROOT / file).is_file():
                yield file


def seconds() -> dict[str, float]:
    """Return what each test has taken in the newest runs that hold it, by node id without its parameters' case."""
    taken: dict[str, float] = {}
    for junit in sorted((ROOT / "reports").glob(f"20*/{JUNIT}")):
        one: dict[str, float] = {}
        try:
            cases = list(ElementTree.parse(junit).iter("testcase"))
        except ElementTree.ParseError:
            continue
        for case in cases:
            file = f"{(case.get('classname') or '').replace('.', '/')}.py"
            node = f"{file}::{(case.get('name') or '').partition('[')[0]}"
            one[node] = one.get(node, 0.0) + float(case.get("time") or 0)
        taken |= one
    return taken


def chosen(tests: Iterable[Reached], taken: Mapping[str, float], budget_s: float = BUDGET_S) -> tuple[list[str], int]:
    """Return the node ids that fit, nearest first, and how many more are reached."""
    kept: list[str] = []
    left, over = budget_s, 0
    for _, file in tests:
        for name in _tests_of(ROOT / file):
            node = f"{file}::{name}"
            unknown = UNKNOWN_TRAINING_S if "/training/" in file else UNKNOWN_S
            cost = taken.get(node, unknown)
            if cost <= left:
                kept.append(node)
                left -= cost
            else:
                over += 1
    return kept, over


def _tests_of(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def main() -> int:
    """Print the node ids for pytest, and to standard error what they are."""
    try:
        files = changed()
        nodes, over = chosen(reached(files), seconds())
    except HarnessError as error:
        print(f"quick: {error}", file=sys.stderr)
        return 2
    more = f"; {over} more are reached and left to make test" if over else ""
    print(f"{len(files)} changed files: {len(nodes)} tests, nearest first{more}", file=sys.stderr)
    print("\n".join(nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
