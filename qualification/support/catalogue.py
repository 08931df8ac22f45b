"""The table of documented checks, and what else is made of the code."""

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Annotated, Any

from cyclopts import Parameter

from gymqual import qualification
from gymqual.harness.plugin.registry import REGISTRY, Check
from gymqual.harness.records import manifest, trace
from gymqual.harness.records.files import ROOT, write_atomically
from gymqual.harness.stacks.specs import STACKS
from gymqual.trainer.runs import manifest as run_manifest

HEADER = f"| check | it proves | {' | '.join(STACKS)} | a subject it must flag |"


def command(
    *,
    write: Annotated[
        bool,
        Parameter(help="Put the table into README.md and the schemas into reports/schema, and name what changed."),
    ] = False,
) -> None:
    """Print the table of documented checks in Markdown, as it stands in the README."""
    print("".join(f"{path.relative_to(ROOT)}\n" for path in _write(ROOT)) if write else table(), end="")


def table() -> str:
    """Return every documented check: its id, its MUST, the gyms it examines, and the defect it is proven to flag."""
    # As pytest names it, where it has loaded the checkout's tests: a check is registered once.
    package = sys.modules.get("qualification", qualification)
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.rpartition(".")[2].startswith("test_"):
            import_module(module.name)
    rows = [_row(check) for _, check in sorted(REGISTRY.items())]
    return "\n".join([HEADER, "|---|---|" + ":-:|" * len(STACKS) + "---|", *rows]) + "\n"


def _row(check: Check) -> str:
    examined = gyms_of(check)
    cells = [check.id, check.must, *("x" if gym in examined else "" for gym in STACKS), check.broken.replace("_", " ")]
    return f"| {' | '.join(cells)} |"


def gyms_of(check: Check) -> set[str]:
    """Return the gyms that a check examines: by the marks of its module, its function and its parameters."""
    module, _, name = check.test.partition(":")
    loaded = sys.modules[module]
    marks = _listed(getattr(loaded, "pytestmark", [])) + _listed(getattr(getattr(loaded, name), "pytestmark", []))
    for mark in list(marks):
        if mark.name == "parametrize":
            marks += [each for value in mark.args[1] for each in getattr(value, "marks", ())]
    return {mark.args[0] for mark in marks if mark.name == "gym"}


def _listed(marks: Any) -> list[Any]:
    return [getattr(mark, "mark", mark) for mark in (marks if isinstance(marks, list) else [marks])]


def schemas() -> dict[str, bytes]:
    """Return the committed JSON Schemas by file name."""
    return {
        "manifest.schema.json": manifest.schema(),
        "trace.schema.json": trace.schema(),
        "training-run.schema.json": run_manifest.schema(),
    }


def _write(root: Path) -> list[Path]:
    """Renew what is made of the code; return the files that changed."""
    readme = root / "README.md"
    before, header, rest = readme.read_text(encoding="utf-8").partition(HEADER)
    _, _, after = (header + rest).partition("\n\n")
    renewed = {readme: f"{before}{table()}\n{after}".encode()}
    renewed |= {root / "reports/schema" / name: content for name, content in schemas().items()}
    changed = [path for path, content in renewed.items() if path.read_bytes() != content]
    for path in changed:
        write_atomically(path, renewed[path])
    return changed
