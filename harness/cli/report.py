"""``gymqual report`` and ``gymqual compare``: pages of directories, and how two of them differ."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.extras import lacking
from gymqual.harness.records.files import write_atomically

MAKERS: dict[str, str] = {}
"""By the name of a file that a directory holds, the ``module:function`` that writes the page of it; filled above."""


def report(
    *directories: Annotated[
        Path,
        Parameter(
            name="DIR",
            help="A run of the suite, a training run, a matched experiment, or the --out folder of a bench; "
            "index.html is written into it.",
            required=True,
        ),
    ],
    summary: Annotated[
        bool, Parameter(help="Print a run of the suite as Markdown instead, for a CI job's summary.")
    ] = False,
) -> None:
    """Make the page of a directory again, from the evidence in it."""
    if reason := lacking("page"):
        raise HarnessError(f"a page {reason}")
    from gymqual.harness.report import pages

    for directory in directories:
        if summary:
            print(pages.summary(directory), end="")
            continue
        try:
            print(_maker(directory)(directory))
        except OSError as error:
            raise HarnessError(f"{directory}: nothing can be written there ({error.strerror})") from None


def _maker(directory: Path) -> Callable[[Path], Path]:
    from gymqual.harness.report import pages

    for name, function in MAKERS.items():
        if (directory / name).is_file():
            module, _, attribute = function.partition(":")
            return getattr(import_module(module), attribute)
    return pages.write


def compare(
    left: Annotated[Path, Parameter(name="A", help="A run of the suite, or a training run.")],
    right: Annotated[Path, Parameter(name="B", help="Another one of the same kind.")],
    /,
    *,
    html: Annotated[Path | None, Parameter(help="File that the comparison is written to as a page, too.")] = None,
) -> int:
    """Show how two run directories differ."""
    if reason := lacking("page"):
        raise HarnessError(f"a comparison {reason}")
    from gymqual.harness.report import comparison

    pair = comparison.read_pair(left, right)
    print("\n".join(pair.lines))
    if html:
        try:
            write_atomically(html, comparison.page(pair))
        except OSError as error:
            raise HarnessError(f"{html} cannot be written ({error.strerror}); name another place") from None
    if pair.result.refusal:
        raise HarnessError(pair.result.refusal)
    return 0 if pair.result.same_outcomes else 1
