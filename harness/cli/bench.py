"""``gymqual bench``: speed as ratios, each held to its goal."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.figures import Figure, Say

console = Console(highlight=False, soft_wrap=True)


def nemo() -> int:
    """Measure the NeMo service and its client against upstream's trivial server and a bare HTTP loop."""
    from gymqual.harness.bench.nemo import bench_nemo

    return show(measured(bench_nemo))


def openenv() -> int:
    """Measure the OpenEnv service and the bridge against upstream's echo environment and its SDK's client."""
    from gymqual.harness.bench.openenv import bench_openenv

    return show(measured(bench_openenv))


def verifiers() -> int:
    """Measure a scripted rollout of the Verifiers environment against the smallest taskset of upstream's scaffold."""
    from gymqual.harness.bench.verifiers import bench_verifiers

    return show(measured(bench_verifiers))


def throughput(
    *,
    out: Annotated[Path, Parameter(help="Folder that gets measurements, table and page.")] = Path("reports/throughput"),
) -> int:
    """Measure episodes a second at 1, 16 and 256 sessions."""
    from gymqual.harness.bench.throughput import bench_throughput

    require_folder(out)
    figures = measured(lambda say: bench_throughput(say, out))
    console.print(f"written to {out}")
    return show(figures)


def measured(measure: Callable[[Say], Sequence[Figure]]) -> Sequence[Figure]:
    """Return what is measured; what is at hand is shown while it takes."""
    with console.status("") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        return measure(say)


def require_folder(folder: Path) -> None:
    """Raise HarnessError unless files can be written to ``folder``, before anything is measured for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        raise HarnessError(f"--out {folder}: nothing can be written there; name a writable folder")


def show(figures: Sequence[Figure]) -> int:
    """Print figures with their goals; return 0 if all are met, else 1."""
    for figure in figures:
        bounded = figure.bound != float("inf")
        goal = f"{figure.value:8.3f} {figure.unit}" + (f", goal <= {figure.bound:g}" if bounded else "")
        word = ("met" if figure.met else "MISSED") if bounded else ""
        console.print(f"{word:<6}  {figure.name:<48} {goal:<32} {figure.note}".rstrip())
    return 0 if all(figure.met for figure in figures) else 1
