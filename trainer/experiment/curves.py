"""The curves of a matched experiment, as SVG."""

from io import BytesIO

import matplotlib
from matplotlib.figure import Figure

from gymqual.trainer.experiment.result import Summary

CURVES = "curves.svg"
WINDOW = 8
"""Steps whose training success is averaged."""
COLOURS = ("#1f5fa8", "#b4541a")
BASELINE = "#5b646d"


def draw(summary: Summary) -> bytes:
    """Return training success by step and dev success by candidate, of every arm over the baseline."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gymqual", "font.size": 9}):
        figure = Figure(figsize=(8.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        low, high = summary.baseline.dev.interval
        axes.axhspan(low, high, color=BASELINE, alpha=0.12, linewidth=0)
        axes.axhline(summary.baseline.dev.share, color=BASELINE, linewidth=1, label="baseline, dev")
        for number, (name, arm) in enumerate(summary.arms.items()):
            colour = COLOURS[number % len(COLOURS)]
            # Equal arms would lie on each other: the later one is drawn thinner, and its points beside.
            width, aside = 2.6 - 1.4 * number, len(arm.training_success) * 0.008 * (2 * number - 1)
            means = _means(arm.training_success)
            steps = range(WINDOW, WINDOW + len(means))
            axes.plot(steps, means, color=colour, linewidth=width, alpha=0.55, label=f"{name}, training rollouts")
            shares = [each.dev.share for each in arm.candidates]
            axes.errorbar(
                [each.step + aside for each in arm.candidates],
                shares,
                yerr=[
                    [each.dev.share - each.dev.interval[0] for each in arm.candidates],
                    [each.dev.interval[1] - each.dev.share for each in arm.candidates],
                ],
                color=colour,
                fmt="os"[number % 2],
                markersize=4,
                capsize=2,
                label=f"{name}, dev (95 %)",
            )
        axes.set(xlabel="optimizer steps", ylabel="strict success, temperature 1", ylim=(0, 1.02))
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.legend(loc="lower right", frameon=False, ncols=2)
        written = BytesIO()
        title = "Training and dev success of a matched experiment"
        figure.savefig(written, format="svg", metadata={"Date": None, "Title": title})
    return written.getvalue()


def _means(values: tuple[float, ...]) -> list[float]:
    """Return the mean of every window of steps; of fewer steps than a window, none."""
    return [sum(values[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(values) + 1)]
