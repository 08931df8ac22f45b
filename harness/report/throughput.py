"""The page of a throughput bench: its table and plot."""

from pathlib import Path

from markupsafe import Markup
from pydantic import ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.report import document, throughput_drawing
from gymqual.harness.report.throughput_result import MEASURES, RESULT, Throughput


def page(folder: Path) -> bytes:
    """Return the page of what a bench left; raises HarnessError."""
    try:
        measured = Throughput.model_validate_json((folder / RESULT).read_bytes())
    except (OSError, ValidationError) as error:
        raise HarnessError(f"{folder / RESULT} is no measurement ({str(error).splitlines()[0]})") from None
    missed = [
        f"{level.gym} with {level.sessions}: {name}"
        for level in measured.levels
        for measure, name in MEASURES.items()
        if level.ratio(measure) > level.goal(measure)
    ]
    plot = throughput_drawing.plot(measured).decode()
    return document.render(
        "throughput.html.j2",
        title="Throughput through the gyms",
        measured=measured,
        measures=MEASURES,
        missed=missed,
        plot=Markup(plot[plot.index("<svg") :]),
    )
