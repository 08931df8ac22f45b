"""The table for people: Markdown, and a heat map as SVG."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gymqual.harness.records.files import write_atomically
from gymqual.qualification.broken.canaries import CANARIES
from gymqual.qualification.studies.silent_bugs.evidence import REPLAY, RULES, USUAL, Seen, seen
from gymqual.qualification.studies.silent_bugs.result import SilentBugs

TABLE = "README.md"
MAP = "silent-bugs.svg"
SHOWN, SILENT, USUAL_SHOWN, INK, FAINT = "#1f5fa8", "#eef2f6", "#b4541a", "#1b1f24", "#8a939c"
LETTERS = dict(zip(USUAL, "tgbc", strict=True))
ROW, COLUMN = 0.24, 0.62
"""Of a cell, inches."""
LOWEST = 0.3
"""Success at the foot of a curve."""


def write(made: SilentBugs, folder: Path) -> None:
    """Write table and map beside the result."""
    write_atomically(folder / TABLE, table(made).encode())
    write_atomically(folder / MAP, heat_map(made))


def table(made: SilentBugs) -> str:
    """Return the table as Markdown."""
    rows = seen(made)
    caught = [row for row in rows if row.caught]
    well = [row for row in rows if row.looks_well]
    parts = [
        "# Silent trainer bugs: which evidence shows which",
        f"{len(caught)} of {len(rows)} planted bugs are found within {made.steps} optimizer steps; {len(well)} of them "
        f"leave everything intact that is usually looked at. {_clean(made)}",
        f"Measured on CPU in fp32 with one policy (`mini4`, weights `{made.policy[:12]}`), one task, and one seed for "
        "the short trainings; the long ones are 40 steps of 16 rollouts, three seeds, strict success on 256 held-out "
        f"dev tasks at temperature 1{_before(made)}. A verdict without findings means none of these bugs, not no bug. "
        "Every number here is of a synthetic development task.",
        f"![Bugs by evidence]({MAP})",
        "\n".join([_header(), *map(_row, rows)]),
        "Usual evidence: not every **t**ensor changed, **g**radients zero or not finite, **b**ase changed, "
        "**c**urve more than two standard errors below the healthy one. Found by: the audit's rules and the optimizer "
        "step; *replay*: a claim of the run that does not hold when it is derived again. bf16: whether anything of "
        "ours shows the bug when the training is in bf16 on CPU.",
        "## Clean trainings",
        _clean_table(made),
        "## Canaries of the gyms",
        "Faults of an environment, planted in the real servers; `pytest --broken -m self_test --gym GYM` proves that "
        "the check named here flags each at its own assertion.",
        "| canary | stands for | nemo | openenv |\n|---|---|---|---|\n"
        + "\n".join(
            f"| `{c.name}` | {c.models} | {c.owners['nemo'][0]} | {c.owners['openenv'][0]} |" for c in CANARIES.values()
        ),
        f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(made.versions.items()))}; task core "
        f"`{made.core[:12]}`, sources `{made.sources[:12]}`. `gymqual bench silent-bugs` does it all again.",
    ]
    return "\n\n".join(parts) + "\n"


def _before(made: SilentBugs) -> str:
    return f", {made.baseline:.3f} before training" if made.baseline is not None else ""


def _clean(made: SilentBugs) -> str:
    alarms = [run.name for run in made.clean if run.alarm]
    said = f"accused: {', '.join(alarms)}" if alarms else "none is accused"
    return f"Of {len(made.clean)} clean trainings, through both gyms' real services, {said}."


def _header() -> str:
    return (
        "| bug | what goes wrong | like | success (healthy) | usual evidence | found by | bf16 |\n"
        "|---|---|---|---|---|---|---|"
    )


def _row(row: Seen) -> str:
    success = "" if row.success is None else f"{row.success:.2f} ({row.healthy:.2f})"
    usual = " ".join(LETTERS[kind] for kind in USUAL if row.usual[kind]) or "intact"
    found = [f"{kind} {'' if kind == REPLAY else step}".strip() for kind, step in row.ours.items() if step is not None]
    half = {None: "", True: "found", False: "**missed**"}[row.in_half_precision]
    like = row.fault.resembles
    return (
        f"| `{row.fault.name}` | {row.fault.models} | {like} | {success} | {usual} | "
        f"{', '.join(found) or '**missed**'} | {half} |"
    )


def _clean_table(made: SilentBugs) -> str:
    lines = [
        "| precision | runs | accused | gradients: 1 - cosine | 1 - norm ratio | log-probs, nats | KL, step 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for precision in ("fp32", "bf16"):
        runs = [run for run in made.clean if run.settings.get("precision", "fp32") == precision]
        if runs:
            largest = [
                max((value for run in runs if (value := getattr(run, name)) is not None), default=0.0)
                for name in ("cosine", "norm_ratio", "logprob_gap", "reference_kl")
            ]
            accused = sum(run.alarm for run in runs)
            lines.append(f"| {precision} | {len(runs)} | {accused} | " + " | ".join(f"{v:.1e}" for v in largest) + " |")
    return "\n".join(lines)


# ---- the map ------------------------------------------------------------------------------------------------


def heat_map(made: SilentBugs) -> bytes:
    """Return bugs by evidence as SVG: what is usual, what is ours, and each bug's curve at the side."""
    rows = seen(made)
    columns = [*USUAL, *RULES, REPLAY]
    names, side = 2.6, 2.9
    width, height = names + COLUMN * len(columns) + 0.3 + side, ROW * len(rows) + 1.6
    # Text stays text, and the same result is the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gymqual", "font.size": 8}):
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        _column_names(axes, columns, names)
        for number, row in enumerate(rows):
            top = 1.45 + number * ROW
            axes.text(names - 0.1, top + ROW / 2, row.fault.name, ha="right", va="center", color=INK)
            for place, column in enumerate(columns):
                _cell(axes, row, column, names + _shift(place) + place * COLUMN, top)
            _curve(axes, row, names + COLUMN * len(columns) + 0.45, top, side - 1.2)
        written = BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Title": "Silent trainer bugs by evidence"})
    return written.getvalue()


def _shift(place: int) -> float:
    return 0.15 if place >= len(USUAL) else 0.0


def _column_names(axes: Axes, columns: list[str], names: float) -> None:
    for place, column in enumerate(columns):
        left = names + _shift(place) + (place + 0.5) * COLUMN
        axes.text(left, 1.38, column, rotation=40, ha="left", va="bottom", color=INK)
    for text, left in (("usual evidence", names), ("ours, and the step", names + len(USUAL) * COLUMN + 0.15)):
        axes.text(left, 0.2, text, fontweight="bold", color=INK)
    side = names + COLUMN * len(columns) + 0.45
    axes.text(side, 0.2, "training success, 40 steps", fontweight="bold", color=INK)
    axes.text(side, 0.38, "grey: healthy; then held-out success", color=INK)


def _cell(axes: Axes, row: Seen, column: str, left: float, top: float) -> None:
    usual = column in USUAL
    shown = row.usual[column] if usual else row.ours[column] is not None
    colour = (USUAL_SHOWN if usual else SHOWN) if shown else SILENT
    axes.add_patch(Rectangle((left + 0.02, top + 0.02), COLUMN - 0.04, ROW - 0.04, color=colour, lw=0))
    if shown:
        step = "shows" if usual else "end" if column == REPLAY else f"step {row.ours[column]}"
        place = (left + COLUMN / 2, top + ROW / 2)
        axes.text(*place, step, ha="center", va="center", color="white", fontsize=6.5)


def _curve(axes: Axes, row: Seen, left: float, top: float, width: float) -> None:
    for training, colour in ((row.healthy_training, FAINT), (row.training, SHOWN)):
        means = smooth(training)
        across = [left + width * number / max(1, len(means) - 1) for number in range(len(means))]
        down = [top + ROW - 0.03 - (ROW - 0.06) * (max(value, LOWEST) - LOWEST) / (1 - LOWEST) for value in means]
        axes.plot(across, down, color=colour, lw=0.9)
    if row.success is not None:
        said = f"{row.success:.2f}" + ("" if row.healthy is None else f" ({row.healthy:.2f})")
        axes.text(left + width + 0.08, top + ROW / 2, said, va="center", color=INK, fontsize=7)


def smooth(values: Sequence[float], over: int = 5) -> list[float]:
    """Return a running mean over so many values before and with each."""
    return [sum(values[max(0, n - over + 1) : n + 1]) / (n + 1 - max(0, n - over + 1)) for n in range(len(values))]
