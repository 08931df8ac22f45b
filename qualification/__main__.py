"""Print the table of documented checks: ``python -m qualification`` (Markdown, as it stands in the README)."""

from importlib import import_module
from pkgutil import walk_packages

import qualification
from harness.checks import REGISTRY


def table() -> str:
    """Return every documented check: its id, its MUST, and the defect it is proven to flag."""
    for module in walk_packages(qualification.__path__, "qualification."):
        if module.name.rpartition(".")[2].startswith("test_"):
            import_module(module.name)
    rows = [f"| {c.id} | {c.must} | {c.broken.replace('_', ' ')} |" for _, c in sorted(REGISTRY.items())]
    return "\n".join(["| check | it proves | a subject it must flag |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
