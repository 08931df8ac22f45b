"""docs/architecture.md is true of the imports, rooms stay few, modules short, and every file is one module."""

import ast
import json
import os
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.commands import run_pytest

pytestmark = pytest.mark.self_test

DOCUMENT = "docs/architecture.md"
FOLDERS = ("harness", "trainer", "qualification")
"""Those that are sorted into rooms."""
MOST_ROOMS = {"harness": 8, "trainer": 12}
MOST_LINES = 300
CHECK_FILE = re.compile(r"qualification/(nemo|openenv|verifiers|parity|training|german)/test_\w+\.py")

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
        below = order[order.index(named[0]) :] if "and below" in cell and named[0] in order else []
        may[room] = {*named, *below}
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
            yield f"{entry} is not drawn in its place"
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


def imports_of(folder: str) -> set[tuple[str, str, str]]:
    """Return (room, room that it imports, file) of every import between the rooms of a folder."""
    found = set()
    rooms = rooms_of(folder)
    for path in (ROOT / folder).rglob("*.py"):
        file = path.relative_to(ROOT)
        module = ".".join(("gymqual", *file.with_suffix("").parts))
        for into, name in rooms_imported(path.read_text(encoding="utf-8"), module):
            if into == folder and {file.parts[1], name} <= rooms and name != file.parts[1]:
                found.add((file.parts[1], name, file.as_posix()))
    return found


def import_faults(rows: Rows, imports: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield each import between rooms that does not lead down the document's table."""
    may = allowed(rows)
    up = [(room, name, file) for room, name, file in sorted(imports) if name not in may.get(room, ())]
    yield from (f"{room} imports {name}: {file}" for room, name, file in up)


def crowded(rooms: Mapping[str, int]) -> dict[str, int]:
    return {folder: count for folder, count in rooms.items() if count > MOST_ROOMS[folder]}


def long_modules(lines: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in lines.items() if count > MOST_LINES and not CHECK_FILE.fullmatch(name)}


def loaded_twice(files: Mapping[str, str], checkout: str) -> dict[str, list[str]]:
    """Return the files of a checkout that are several modules, with their names; ``files`` are those by module."""
    modules = defaultdict(list)
    for name, file in files.items():
        inside = os.path.relpath(os.path.realpath(file), os.path.realpath(checkout))
        # The environments stand in the checkout as well.
        if not inside.startswith(("..", ".venv")) and os.path.basename(inside) != "__init__.py":
            modules[inside].append(name)
    return {file: sorted(names) for file, names in modules.items() if len(names) > 1}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_room_has_its_row(folder: str) -> None:
    """Every room MUST have exactly one row in the document, and every row its room."""
    rows, rooms = read_rows(text_of(DOCUMENT), folder), rooms_of(folder)
    faults = list(row_faults(rows, rooms))
    assert (faults, len(rooms) > 5) == ([], True), explain(
        subject=f"rooms of {folder} and their rows in {DOCUMENT}; there are several",
        expected=([], True),
        got=(faults, sorted(rooms)),
        cause="a room was added, renamed or removed, and the document was not told",
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rows_are_the_layers(folder: str) -> None:
    """Rows, their last column, and the picture MUST be the layers of the contract in pyproject.toml."""
    layers = read_layers(text_of("pyproject.toml"), folder)
    faults = [*layer_faults(read_rows(text_of(DOCUMENT), folder), layers), *picture_faults(text_of(DOCUMENT), layers)]
    assert faults == [], explain(
        subject=f"rooms of {folder} in {DOCUMENT} against [tool.importlinter]",
        expected=[],
        got=faults,
        cause="one of the two was changed alone",
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_leads_down_the_table(folder: str) -> None:
    """Every import between rooms MUST lead to a room that the importing one's row allows."""
    imports = imports_of(folder)
    faults = list(import_faults(read_rows(text_of(DOCUMENT), folder), imports))
    assert (faults, len(imports) > 5) == ([], True), explain(
        subject=f"imports between rooms of {folder} that {DOCUMENT} does not allow; there are several imports",
        expected=([], True),
        got=(faults, len(imports)),
        cause="a module stands in the wrong room, or the document is of yesterday",
    )


def test_rooms_are_few() -> None:
    """The trainer MUST have at most 12 rooms, the harness at most 8."""
    seen = {folder: len(rooms_of(folder)) for folder in MOST_ROOMS}
    assert crowded(seen) == {}, explain(
        subject="folders with too many rooms",
        expected=f"at most {MOST_ROOMS}",
        got=seen,
        cause="a new room where an old one had the place",
    )


def test_modules_are_short() -> None:
    """No module of the product MUST have more than 300 lines, files of numbered checks aside."""
    files = [path for folder in (*FOLDERS, "gyms") for path in (ROOT / folder).rglob("*.py")]
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
    with open(WRITTEN, "w") as file:
        json.dump({"items": len(session.items), "files": {name: path for name, path in files.items() if path}}, file)
"""
"""A plugin that writes down what modules there are once everything is collected."""


def test_every_file_is_one_module(tmp_path: Path) -> None:
    """No file of the checkout MUST be loaded under two names where the whole suite is collected."""
    written = tmp_path / "modules.json"
    (tmp_path / "collected.py").write_text(f"WRITTEN = {str(written)!r}\n{COLLECTED}")
    ran = run_pytest("--collect-only", "-q", "-p", "collected", f"--reports={tmp_path}", PYTHONPATH=str(tmp_path))
    told = json.loads(written.read_text()) if written.exists() else {"items": 0, "files": {}}
    twice = loaded_twice(told["files"], str(ROOT))
    assert (ran.returncode, told["items"] > 300, twice) == (0, True, {}), explain(
        subject="exit code of collecting the suite; many tests are collected; files that are several modules",
        expected=(0, True, {}),
        got=(ran.returncode, told["items"], twice, ran.stdout[-500:], ran.stderr[-500:]),
        cause="a helper is imported by pytest's name of its folder, or by a name that only the checkout has",
    )


ROWS = [("top", "`left` and below"), ("left", "`low`"), ("right", "`low`"), ("low", "-")]
ROOMS = {"top", "left", "right", "low"}
LAYERS = [["top"], ["left", "right"], ["low"]]
PICTURE = "```\nharness  trainer  qualification\n\ntop  x\nleft | right  y\nlow\n```\n"
TWO = {"qualification.a": "/c/q/a.py", "gymqual.qualification.a": "/c/q/a.py"}


def imported(source: str) -> set[tuple[str, str]]:
    return rooms_imported(source, "gymqual.harness.report.pages")


PAIR, BARE = [("a", "`b`"), ("b", "-")], [("a", "-"), ("b", "-")]
LONG = {"qualification/nemo/wire.py": 301, "trainer/runs/config.py": 301}
TRIED: dict[str, tuple[Callable[[], Iterable[object]], Iterable[object]]] = {
    "a room without a row": (lambda: row_faults(ROWS[1:], ROOMS), ["top: 0 rows, a room"]),
    "two rows of a room": (lambda: row_faults([*ROWS, ROWS[0]], ROOMS), ["top: 2 rows, a room"]),
    "a row without its room": (lambda: row_faults(ROWS, ROOMS - {"low"}), ["low: 1 rows, no room"]),
    "sound rows": (lambda: row_faults(ROWS, ROOMS), []),
    "another order": (lambda: layer_faults([("b", "-")], [["a"]]), ["the order is ['b'], in the contract ['a']"]),
    "a sibling allowed": (lambda: layer_faults(PAIR, [["a", "b"]]), ["a may import ['b'], by the contract []"]),
    "a layer left out": (lambda: layer_faults(BARE, [["a"], ["b"]]), ["a may import [], by the contract ['b']"]),
    "sound layers": (lambda: layer_faults(ROWS, LAYERS), []),
    "a layer not drawn": (lambda: picture_faults(PICTURE, [["top"], ["mid"]]), ["mid is not drawn in its place"]),
    "a layer too high": (lambda: picture_faults(PICTURE, [["low"], ["top"]]), ["top is not drawn in its place"]),
    "a sound picture": (lambda: picture_faults(PICTURE, LAYERS), []),
    "an import that leads up": (lambda: import_faults(ROWS, {("low", "top", "a.py")}), ["low imports top: a.py"]),
    "an import of a sibling": (lambda: import_faults(ROWS, {("left", "right", "a")}), ["left imports right: a"]),
    "sound imports": (lambda: import_faults(ROWS, {("top", "right", "a"), ("left", "low", "b")}), []),
    "too many rooms": (lambda: crowded({"harness": 9, "trainer": 12}), {"harness": 9}),
    "long modules": (lambda: long_modules({**LONG, "trainer/a.py": 300}), LONG),
    "a long file of checks": (lambda: long_modules({"qualification/nemo/test_a.py": 434}), {}),
    "a file that is two modules": (lambda: loaded_twice(TWO, "/c"), {"q/a.py": sorted(TWO)}),
    "a file elsewhere": (lambda: loaded_twice(TWO, "/d"), {}),
    "a package": (lambda: loaded_twice({"q": "/c/q/__init__.py", "g.q": "/c/q/__init__.py"}, "/c"), {}),
    "import": (lambda: imported("import gymqual.trainer.audit.attach"), {("trainer", "audit")}),
    "from a folder": (lambda: imported("from gymqual.trainer import a, b"), {("trainer", "a"), ("trainer", "b")}),
    "by pytest's name": (lambda: imported("from qualification.meta import x"), {("qualification", "meta")}),
    "from the folder above": (lambda: imported("from .. import plugin"), {("harness", "plugin")}),
    "from a room beside": (lambda: imported("from ..records.files import ROOT"), {("harness", "records")}),
    "in a function": (lambda: imported("def a():\n    from gymqual.harness.cli import b"), {("harness", "cli")}),
    "of others": (lambda: imported("import trainers.audit\nfrom gymqual import attach"), set()),
}
"""What each rule finds, by what it is tried on: what is wrong is found, what is sound left alone."""


@pytest.mark.parametrize("case", TRIED)
def test_the_rules_find_what_is_planted(case: str) -> None:
    """Each rule above MUST find what is wrong in a small case, and nothing in a sound one."""
    find, expected = TRIED[case]
    made = find()
    found = list(made) if isinstance(made, Iterator) else made
    assert found == expected, explain(
        subject=f"findings: {case}", expected=expected, got=found, cause="the rule cannot fail, or fails for anything"
    )
