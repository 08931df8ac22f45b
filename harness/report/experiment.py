"""The page of a matched experiment: arms, selection, held-out success, retention, parity, and what it does not say."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.report import document

if TYPE_CHECKING:
    from gymqual.harness.report.plots import Panel

SUMMARY = "summary.json"
REPORT = "report"
FORMAT = "gymqual.experiment-result/1"
WINDOW = 8
"""Steps whose training success is averaged."""


def report_in(folder: Path) -> Path:
    """Return the folder that holds an experiment's report: itself, or the one in it."""
    return folder / REPORT if (folder / REPORT / SUMMARY).is_file() else folder


def is_experiment(folder: Path) -> bool:
    """Whether a directory holds the result of a matched experiment."""
    try:
        content = json.loads((report_in(folder) / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def page(folder: Path) -> bytes:
    """Return the page of an experiment's report; raises HarnessError for a summary of another shape."""
    from gymqual.harness.report import plots

    report = report_in(folder)
    summary = json.loads((report / SUMMARY).read_bytes())
    try:
        rose = [name for name, arm in summary["arms"].items() if arm["significant_rise"]]
        where = "" if report == folder else f"{REPORT}/"
        return document.render(
            "experiment.html.j2",
            title=f"Experiment: {', '.join(summary['arms'])}",
            rose=rose,
            summary=summary,
            candidates=candidates(summary),
            curves=[plots.draw(panel, f"e{number}") for number, panel in enumerate(panels(summary))],
            beside=[f"{where}{name}" for name in (SUMMARY, "protocol.md", "README.md") if (report / name).is_file()],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"{report / SUMMARY} is not whole ({error}); make the report again") from None


def candidates(summary: dict[str, Any]) -> dict[str, Any]:
    """Return dev success by step: one row for the baseline and each arm, the selected step named."""
    rows = {name: {each["step"]: each["dev"] for each in arm["candidates"]} for name, arm in summary["arms"].items()}
    steps = sorted({0, *(step for row in rows.values() for step in row)})
    return {"steps": steps, "rows": {"baseline": {0: summary["baseline"]["dev"]}, **rows}}


def panels(summary: dict[str, Any]) -> list["Panel"]:
    """Return the curves: dev success of the candidates, and training success as a running mean."""
    from gymqual.harness.report.plots import Line, Panel

    arms = summary["arms"].items()
    dev = tuple(
        Line(
            name,
            [each["step"] for each in arm["candidates"]],
            [each["dev"]["share"] for each in arm["candidates"]],
            [tuple(each["dev"]["interval"]) for each in arm["candidates"]],
        )
        for name, arm in arms
    )
    training = tuple(Line(name, *_means(arm["training_success"])) for name, arm in arms)
    baseline = summary["baseline"]["dev"]["share"]
    return [
        Panel("strict success on dev, by step; dotted: baseline", dev, share=True, level=baseline, size=(5, 2.6)),
        Panel(f"strict success of training rollouts, mean of {WINDOW} steps", training, share=True, size=(5, 2.6)),
    ]


def _means(values: list[float]) -> tuple[list[int], list[float]]:
    places = range(WINDOW, len(values) + 1)
    return list(places), [sum(values[place - WINDOW : place]) / WINDOW for place in places]
