"""Curves as SVG that stands in the page, takes its colours from it, and is read out by its title."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, FAINT, FIRST, SECOND = "#010203", "#020304", "#030405", "#040506"
"""Stand for colours of the page's style: what is drawn in them is written with its variables."""
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", FIRST: "var(--first)", SECOND: "var(--second)"}
_SETTINGS: dict[Any, Any] = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name},
    "svg.fonttype": "none",
    "svg.hashsalt": "gymqual",
    "font.size": 8,
}
"""Whatever a user has set for plots elsewhere: those of a page are the same everywhere."""
SIZE = (3.3, 2.0)
"""Inches."""


@dataclass(frozen=True)
class Line:
    """One line of a panel; a place without a value is left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    interval: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Panel:
    """One small plot."""

    title: str
    lines: tuple[Line, ...]
    share: bool = False
    """Values from 0 to 1."""
    level: float | None = None
    """A value to compare with, drawn across."""
    size: tuple[float, float] = SIZE


def draw(panel: Panel, name: str) -> Markup:
    """Return a panel as an SVG element whose ids begin with ``name``."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=panel.size, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        _lines(axes, panel)
        _dress(axes, panel)
        written = BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return _inline(written.getvalue().decode(), panel.title, name)


def _lines(axes: Axes, panel: Panel) -> None:
    if panel.level is not None:
        axes.axhline(panel.level, color=FAINT, linewidth=1, linestyle=":")
    for number, line in enumerate(panel.lines):
        colour = (FIRST, SECOND)[number % 2]
        points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
        if not points:
            continue
        x, y = zip(*points, strict=True)
        # Equal lines would hide each other: the later one is drawn thinner.
        width = 2.2 - 1.2 * number if len(panel.lines) > 1 else 1.4
        marker = "o" if len(x) < 40 else ""
        axes.plot(x, y, color=colour, linewidth=width, marker=marker, markersize=2.5, label=line.name)
        if line.interval:
            low, high = zip(*line.interval, strict=True)
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    if len(panel.lines) > 1:
        for text in axes.legend(frameon=False, labelcolor=INK, fontsize=7.5, loc="lower right").get_texts():
            text.set_parse_math(False)


def _dress(axes: Axes, panel: Panel) -> None:
    axes.patch.set_visible(False)
    axes.set_title(panel.title, color=INK, fontsize=8.5, loc="left", parse_math=False)
    axes.grid(color=FAINT, alpha=0.3, linewidth=0.6)
    axes.tick_params(colors=INK, labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.share:
        axes.set_ylim(-0.04, 1.04)
    for side, spine in axes.spines.items():
        spine.set_color(FAINT)
        spine.set_visible(side in ("left", "bottom"))


def _inline(svg: str, title: str, name: str) -> Markup:
    body = svg[svg.index("<svg") :]
    # The style that matplotlib sets for all elements stands in the page's own, for plots alone.
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    for drawn, variable in _VARIABLES.items():
        body = body.replace(drawn, variable)
    # Several plots stand in one page, each with the ids that matplotlib always gives.
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", body)
    head = f'<svg class="plot" role="img" aria-label="{escape(title)}"'
    return Markup(body.replace("<svg", head, 1).strip())
