"""Throughput for people: a Markdown table, and a plot as SVG."""

from io import BytesIO
from math import inf
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gymqual.harness.records.files import write_atomically
from gymqual.harness.report.throughput_result import MEASURES, Level, Throughput

TABLE = "README.md"
PLOT = "throughput.svg"
INK, FAINT = "#1b1f24", "#8a939c"
STYLES = {
    "wall": ("#1f5fa8", "o", "-"),
    "services": ("#b4541a", "s", "-"),
    "processes": ("#b4541a", "s", ":"),
    "p50": ("#3d7a3a", "^", "-"),
    "p99": ("#3d7a3a", "^", ":"),
}
"""Colour, marker and line of each measure."""
TICKS = [2.0**power for power in range(-5, 6)]


def write(measured: Throughput, folder: Path) -> None:
    """Write table and plot beside the measurements."""
    write_atomically(folder / TABLE, table(measured).encode())
    write_atomically(folder / PLOT, plot(measured))


def table(measured: Throughput) -> str:
    """Return the table as Markdown."""
    parts = [
        "# Episodes a second through the gyms",
        "An episode is what a rollout makes of a gym: open, the oracle's two tool calls, verify, close, through the "
        "product's client on one event loop, for OpenEnv through the bridge. Beside it, in turns, as many requests of "
        "upstream's trivial server (NeMo: its base class with an echo tool; OpenEnv: its own echo environment) by "
        "upstream's own asynchronous client. Every ratio is ours over upstream's, below 1 is better, and is free of "
        "what upstream differs from itself in the same rounds; in brackets its goal. A failed episode ends the bench.",
        f"![Ratios by sessions]({PLOT})",
        "\n".join([_header(), *(_row(level) for level in measured.levels)]),
        "Services are the server, and for OpenEnv server and bridge against upstream's server alone; all processes are "
        "these and the client. OpenEnv's bridge is a second hop: it is upstream's client in a process of its own, so "
        "that trainer and SDK share no package. Our client replays every episode before it believes its verdict, which "
        "upstream's does not.",
        f"Measured on {measured.machine}, shared with other work (average load before: {measured.load:g}), so that "
        f"only the ratios can be compared. {_versions(measured)}. `gymqual bench throughput` does it again.",
    ]
    return "\n\n".join(parts) + "\n"


def _header() -> str:
    names = ["gym", "sessions", "episodes/s (upstream)", *MEASURES.values()]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def _row(level: Level) -> str:
    speed = f"{1 / level.ours('wall'):.0f} ({1 / level.upstream('wall'):.0f})"
    cells = [level.gym, str(level.sessions), speed, *(_cell(level, measure) for measure in MEASURES)]
    return f"| {' | '.join(cells)} |"


def _cell(level: Level, measure: str) -> str:
    ratio, goal = level.ratio(measure), level.goal(measure)
    bounded = "" if goal == inf else f" ({goal:g})"
    shown = f"{ratio:.2f}" if ratio <= goal else f"**{ratio:.2f}**"
    return f"{_ms(level.ours(measure))} ms, {shown}{bounded}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.{0 if seconds > 0.01 else 1 if seconds > 0.001 else 2}f}"


def _versions(measured: Throughput) -> str:
    return "; ".join(f"{name}: {version}" for name, version in sorted(measured.versions.items()))


# ---- the plot -------------------------------------------------------------------------------------------------


def plot(measured: Throughput) -> bytes:
    """Return the ratios by sessions as SVG, one panel a gym."""
    gyms = list(dict.fromkeys(level.gym for level in measured.levels))
    # Text stays text, and the same result is the same bytes. On white, so that it can be read on a dark page as well.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gymqual", "font.size": 9}):
        figure = Figure(figsize=(4.2 * len(gyms), 3.6), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(gyms), sharey=True, squeeze=False)[0]
        for axes, gym in zip(panels, gyms, strict=True):
            _panel(axes, gym, [level for level in measured.levels if level.gym == gym])
        drawn = [level.ratio(measure) for level in measured.levels for measure in STYLES]
        panels[0].set_ylim(min(0.4, *drawn) / 1.1, max(2.5, *drawn) * 1.1)
        panels[0].set_ylabel("ours over upstream's trivial server")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        written = BytesIO()
        title = "Throughput through the gyms over upstream's trivial servers"
        figure.savefig(written, format="svg", metadata={"Date": None, "Title": title})
    return written.getvalue()


def _panel(axes: Axes, gym: str, levels: list[Level]) -> None:
    sessions = [level.sessions for level in levels]
    axes.axhline(1, color=FAINT, linewidth=1)
    for measure, (colour, marker, line) in STYLES.items():
        ratios = [level.ratio(measure) for level in levels]
        axes.plot(sessions, ratios, line, color=colour, marker=marker, markersize=4, label=MEASURES[measure])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sessions, [str(each) for each in sessions])
    axes.set_yticks(TICKS, [f"{each:g}" for each in TICKS])
    axes.minorticks_off()
    axes.set_title(gym, color=INK)
    axes.set_xlabel("sessions at once")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
