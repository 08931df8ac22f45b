"""docs/architecture.md is true of the imports, rooms stay few, modules short, and every file is one module."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT

pytestmark = pytest.mark.self_test

DOCUMENT = "docs/architecture.md"
FOLDERS = ("harness", "trainer", "qualification")
"""Those that are sorted into rooms."""
MOST_ROOMS = {"harness": 8, "trainer": 12}
MOST_LINES = 300
CHECK_FILE = re.compile(r"qualification/(nemo|openenv|verifiers|parity|training|german)/test_\w+\.py")
"""The numbered checks of one property stay together, however many they are."""

Layers = Sequence[Sequence[str]]
"""Rooms from the top; those of one layer do not import each other."""
Rows = Sequence[tuple[str, str]]
"""Rooms in the order of the document, each with what stands in its last column."""


def read_rows(text: str, folder: str) -> Rows:
    """Return the rows of a folder's table: of the section that is headed by its name."""
    section = re.search(rf"(?ms)^## {folder.capitalize()}$(.*?)(?=^## |\Z)", text)
    return re.findall(r"(?m)^\| `(\w+)` \| .+ \| (.+) \|$", section[1] if section else "")


def read_layers(settings: str, folder: str) -> Layers:
    """Return the layers of a folder's rooms, as import-linter's contract has them."""
    contracts = tomllib.loads(settings)["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each.get("containers") == [f"gymqual.{folder}"]]
    return [layer.split(" | ") for layer in layers]


def rooms_of(folder: str) -> set[str]:
    """Return the rooms that a folder of the checkout has."""
    return {file.parent.name for file in (ROOT / folder).glob("*/__init__.py")}


def row_faults(rows: Rows, rooms: Iterable[str]) -> Iterator[str]:
    """Yield each room that has not exactly one row, and each row without its room."""
    counted = Counter(room for room, _ in rows)
    for room in sorted({*rooms, *counted}):
        if counted[room] != 1 or room not in rooms:
            yield f"{room}: {counted[room]} rows, {'a' if room in rooms else 'no'} room"


def allowed(rows: Rows) -> dict[str, set[str]]:
    """Return what each room may import by its row: ``-`` is nothing, ``and below`` the rest of the table."""
    order = [room for room, _ in rows]
    may = {}
    for room, cell in rows:
        named = re.findall(r"`(\w+)`", cell)
        lowest = len(order) if "and below" not in cell else min(order.index(each) for each in named if each in order)
        may[room] = {*named, *order[lowest:]}
    return may


def layer_faults(rows: Rows, layers: Layers) -> Iterator[str]:
    """Yield where the document has another order than the contract, or allows other imports."""
    order = [room for room, _ in rows]
    due = [room for layer in layers for room in layer]
    if order != due:
        yield f"the order is {order}, in the contract {due}"
    may = allowed(rows)
    for number, layer in enumerate(layers):
        lower = {room for below in layers[number + 1 :] for room in below}
        for room in layer:
            if may.get(room, set()) != lower:
                yield f"{room} may import {sorted(may.get(room, ()))}, by the contract {sorted(lower)}"


def picture_faults(text: str, layers: Layers) -> Iterator[str]:
    """Yield each layer that is no entry of the document's picture of rooms, below the layer before it."""
    pictures = re.findall(r"(?ms)^```\n(.*?)^```", text)
    lines = next((each for each in pictures if re.search(r"^harness +trainer +qualification\n", each)), "").split("\n")
    above = 0
    for layer in layers:
        entry = " | ".join(layer)
        places = [n for n, line in enumerate(lines) if entry in re.split(r" {2,}", line) and n > above]
        if not places:
            yield f"{entry} is not drawn below what stands on it"
        above = min(places, default=above)


def rooms_imported(source: str, module: str) -> set[tuple[str, str]]:
    """Return (folder, room) of every import in a module's source, ``module`` being its name, ``gymqual.`` included."""
    package = module.split(".")[:-1]
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            names += [f"{start}.{alias.name}" for alias in node.names]
    # pytest's own name of a test's folder is no way around.
    parts = [name.removeprefix("gymqual.").split(".") for name in names]
    return {(part[0], part[1]) for part in parts if part[0] in FOLDERS and len(part) > 1}


def imports_of(folder: str) -> dict[tuple[str, str], list[str]]:
    """Return every (room, room that it imports) of a folder, with the files that do."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    rooms = rooms_of(folder)
    for path in python_files(ROOT / folder):
        file = path.relative_to(ROOT)
        room = file.parts[1]
        module = ".".join(("gymqual", *file.with_suffix("").parts))
        for into, name in rooms_imported(path.read_text(encoding="utf-8"), module):
            if into == folder and room in rooms and name in rooms and name != room:
                found[room, name].append(file.as_posix())
    return found


def import_faults(rows: Rows, imports: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[str]:
    """Yield each import between rooms that does not lead down the document's table."""
    may = allowed(rows)
    for (room, imported), files in sorted(imports.items()):
        if imported not in may.get(room, set()):
            yield f"{room} imports {imported}: {', '.join(files)}"


def python_files(folder: Path) -> list[Path]:
    """Return every Python file below a folder."""
    return sorted(folder.rglob("*.py"))


def long_modules(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the modules that are too long, with their lines."""
    return {name: count for name, count in lines.items() if count > MOST_LINES and not CHECK_FILE.fullmatch(name)}


def loaded_twice(files: Mapping[str, str], checkout: str) -> dict[str, list[str]]:
    """Return the files of a checkout that are several modules, with their names; ``files`` are those by module."""
    modules = defaultdict(list)
    for name, file in files.items():
        inside = os.path.relpath(os.path.realpath(file), os.path.realpath(checkout))
        # The environment stands in the checkout as well.
        if not inside.startswith(("..", ".venv")) and os.path.basename(inside) != "__init__.py":
            modules[inside].append(name)
    return {file: sorted(names) for file, names in modules.items() if len(names) > 1}


@pytest.fixture(scope="module")
def document() -> str:
    """The text of the document."""
    return (ROOT / DOCUMENT).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def settings() -> str:
    """The text of pyproject.toml."""
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_room_has_its_row(document: str, folder: str) -> None:
    """Every room MUST have exactly one row in the document, and every row its room."""
    rows, rooms = read_rows(document, folder), rooms_of(folder)
    faults = list(row_faults(rows, rooms))
    assert (faults, len(rooms) > 5) == ([], True), explain(
        subject=f"rooms of {folder} and their rows in {DOCUMENT}; there are several",
        expected=([], True),
        got=(faults, sorted(rooms)),
        cause="a room was added, renamed or removed, and the document was not told",
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rows_are_the_layers(document: str, settings: str, folder: str) -> None:
    """Rows, their last column, and the picture MUST be the layers of the contract in pyproject.toml."""
    layers = read_layers(settings, folder)
    faults = [*layer_faults(read_rows(document, folder), layers), *picture_faults(document, layers)]
    assert faults == [], explain(
        subject=f"rooms of {folder} in {DOCUMENT} against [tool.importlinter]",
        expected=[],
        got=faults,
        cause="one of the two was changed alone",
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_leads_down_the_table(document: str, folder: str) -> None:
    """Every import between rooms MUST lead to a room that the importing one's row allows."""
    imports = imports_of(folder)
    faults = list(import_faults(read_rows(document, folder), imports))
    assert (faults, len(imports) > 5) == ([], True), explain(
        subject=f"imports between rooms of {folder} that {DOCUMENT} does not allow; there are several imports",
        expected=([], True),
        got=(faults, len(imports)),
        cause="a module stands in the wrong room, or the document is of yesterday",
    )


def test_rooms_are_few() -> None:
    """The trainer MUST have at most 12 rooms, the harness at most 8."""
    seen = {folder: len(rooms_of(folder)) for folder in MOST_ROOMS}
    over = {folder: count for folder, count in seen.items() if count > MOST_ROOMS[folder]}
    assert over == {}, explain(
        subject="folders with too many rooms",
        expected=f"at most {MOST_ROOMS}",
        got=seen,
        cause="a new room where an old one had the place",
    )


def test_modules_are_short() -> None:
    """No module of the product MUST have more than 300 lines, files of numbered checks aside."""
    files = [path for folder in (*FOLDERS, "gyms") for path in python_files(ROOT / folder)]
    files += [ROOT / "conftest.py", *(ROOT / "gymqual").glob("*.py")]
    lines = {file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    over = long_modules(lines)
    assert (over, len(lines) > 300) == ({}, True), explain(
        subject=f"modules with more than {MOST_LINES} lines; there are many modules",
        expected=({}, True),
        got=(over, len(lines)),
        cause="a module owns two things",
    )


COLLECTED = """
import json, sys

def pytest_collection_finish(session):
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    with open(session.config.rootpath / {written!r}, "w") as file:
        json.dump({"items": len(session.items), "files": {name: path for name, path in files.items() if path}}, file)
"""
"""A plugin that writes down what modules there are once everything is collected."""


def test_every_file_is_one_module(tmp_path: Path) -> None:
    """No file of the checkout MUST be loaded under two names where the whole suite is collected."""
    written = tmp_path / "modules.json"
    (tmp_path / "collected.py").write_text(COLLECTED.replace("{written!r}", repr(str(written))))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "collected", f"--reports={tmp_path}"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    told = json.loads(written.read_text()) if written.exists() else {"items": 0, "files": {}}
    twice = loaded_twice(told["files"], str(ROOT))
    assert (ran.returncode, told["items"] > 300, twice) == (0, True, {}), explain(
        subject="exit code of collecting the suite; many tests are collected; files that are several modules",
        expected=(0, True, {}),
        got=(ran.returncode, told["items"], twice, ran.stdout[-500:], ran.stderr[-500:]),
        cause="a helper is imported by pytest's name of its folder, or by a name that only the checkout has",
    )


ROWS = [("top", "`left` and below"), ("left", "`low`"), ("right", "`low`"), ("low", "-")]
LAYERS = [["top"], ["left", "right"], ["low"]]
PICTURE = "```\nharness  trainer  qualification\n\ntop  x\nleft | right  y\nlow\n```\n"
PLANTED: dict[str, tuple[Callable[[], Iterable[str]], str]] = {
    "a room without a row": (lambda: row_faults(ROWS[1:], ["top", "left", "right", "low"]), "top: 0 rows, a room"),
    "two rows": (lambda: row_faults([*ROWS, ROWS[0]], ["top", "left", "right", "low"]), "top: 2 rows, a room"),
    "a row without its room": (lambda: row_faults(ROWS, ["top", "left", "right"]), "low: 1 rows, no room"),
    "rows in another order": (lambda: layer_faults([*ROWS[1:], ROWS[0]], LAYERS), "the order is"),
    "a sibling allowed": (lambda: layer_faults(ROWS, [["top"], ["left"], ["right"], ["low"]]), "left may import"),
    "a layer not drawn": (lambda: picture_faults(PICTURE, [["top"], ["middle"], ["low"]]), "middle is not drawn"),
    "a layer drawn above": (lambda: picture_faults(PICTURE, [["low"], ["top"]]), "top is not drawn"),
    "an import that leads up": (lambda: import_faults(ROWS, {("low", "top"): ["a.py"]}), "low imports top: a.py"),
    "an import of a sibling": (lambda: import_faults(ROWS, {("left", "right"): ["a.py"]}), "left imports right"),
    "a long module": (lambda: long_modules({"trainer/runs/config.py": 301}), "trainer/runs/config.py"),
    "a long helper beside checks": (lambda: long_modules({"qualification/nemo/wire.py": 301}), "wire.py"),
    "a file that is two modules": (
        lambda: loaded_twice({"qualification.a": "/c/q/a.py", "gymqual.qualification.a": "/c/q/a.py"}, "/c"),
        "q/a.py",
    ),
}
"""What is wrong, with what finds it, and words of the finding."""


@pytest.mark.parametrize("wrong", PLANTED)
def test_what_is_wrong_is_found(wrong: str) -> None:
    """Each of the rules above MUST find what is planted here."""
    find, words = PLANTED[wrong]
    found = list(find())
    assert any(words in each for each in found), explain(
        subject=f"findings where there is {wrong}", expected=words, got=found, cause="the rule cannot fail"
    )


SOUND: dict[str, Callable[[], Iterable[object]]] = {
    "rows": lambda: row_faults(ROWS, ["top", "left", "right", "low"]),
    "layers": lambda: layer_faults(ROWS[:1] + [("left", "`low` and below"), *ROWS[2:]], LAYERS),
    "picture": lambda: picture_faults(PICTURE, LAYERS),
    "imports": lambda: import_faults(ROWS, {("top", "right"): ["a.py"], ("left", "low"): ["b.py"]}),
    "lines": lambda: long_modules({"qualification/nemo/test_service.py": 434, "trainer/runs/config.py": 300}),
    "modules": lambda: loaded_twice({"a": "/c/a.py", "b": "/c/b.py", "x": "/d/x.py", "y": "/d/x.py"}, "/c"),
}


@pytest.mark.parametrize("rule", SOUND)
def test_what_is_sound_is_left_alone(rule: str) -> None:
    """None of the rules MUST find anything where nothing is wrong."""
    found = list(SOUND[rule]())
    assert found == [], explain(subject=f"findings on sound {rule}", expected=[], got=found, cause="the rule is wrong")


IMPORTS = {
    "import gymqual.trainer.audit.attach": {("trainer", "audit")},
    "from gymqual.trainer import audit, grpo": {("trainer", "audit"), ("trainer", "grpo")},
    "from qualification.support import pages": {("qualification", "support")},
    "from .. import plugin": {("harness", "plugin")},
    "from ..records.files import ROOT": {("harness", "records")},
    "from .schedule import x": {("harness", "report")},
    "def late():\n    from gymqual.harness.cli import app": {("harness", "cli")},
    "import trainers; from trainers.audit import x": set(),
    "from gymqual import attach": set(),
}


@pytest.mark.parametrize("source", IMPORTS)
def test_imports_are_read(source: str) -> None:
    """Every way to write an import MUST be read."""
    found = rooms_imported(source, "gymqual.harness.report.pages")
    assert found == IMPORTS[source], explain(
        subject=source, expected=IMPORTS[source], got=found, cause="a form of import that is not read"
    )
