"""The throughput bench: the load is what it says, its figures follow from its rounds, and so does what is committed."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gymqual.harness.bench.load import Clock, percentile, play
from gymqual.harness.bench.measured import owned
from gymqual.harness.bench.throughput import EPISODES, TOOL_CALLS, Side, nemo_sides, openenv_sides
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.files import ROOT
from gymqual.harness.report import throughput_drawing
from gymqual.harness.report.throughput_result import MEASURES, RESULT, Level, Throughput, figures

pytestmark = pytest.mark.self_test

COMMITTED = ROOT / "reports" / "sample" / "throughput"
NAMED = ["openenv at 256: tool call, p50"]
"""The goals that the committed measurements miss, as README.md states and explains them."""


@pytest.fixture(scope="module")
def committed() -> Throughput:
    """The committed measurements."""
    return Throughput.model_validate_json((COMMITTED / RESULT).read_bytes())


def test_the_load_keeps_so_many_sessions_busy() -> None:
    """Every episode MUST be played once, as many at a time as there are sessions and no more."""
    played: list[int] = []
    at_once = [0, 0]

    async def episode(number: int, clock: Clock) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await clock.call(asyncio.sleep(0))
        played.append(number)
        at_once[0] -= 1

    took = asyncio.run(play(3, 10, episode))
    assert (sorted(played), at_once[1], took["calls"]) == (list(range(10)), 3, 10), explain(
        subject="episodes that were played, most of them at once, and tool calls",
        expected=(list(range(10)), 3, 10),
        got=(sorted(played), at_once[1], took["calls"]),
        cause="sessions do not take the next episode, or wait for each other",
    )


def test_a_load_with_a_failure_has_no_speed() -> None:
    """A failed episode MUST end the load with its reason, once the others are through."""
    played: list[int] = []

    async def episode(number: int, clock: Clock) -> None:
        if number == 3:
            raise OSError("no more room")
        await clock.call(asyncio.sleep(0))
        played.append(number)

    with pytest.raises(RuntimeError, match=r"1 of 5 episodes failed, first OSError\('no more room'\)"):
        asyncio.run(play(2, 5, episode))
    assert played == [0, 1, 2, 4], "the failure of one episode kept others from being played"


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([7.0], 99, 7.0), ([1.0, 2.0], 50, 1.0), ([1.0, 2.0, 3.0], 50, 2.0), (list(map(float, range(1, 101))), 99, 99.0)],
)
def test_a_percentile_is_a_value_that_was_measured(values: list[float], percent: float, expected: float) -> None:
    """A percentile MUST be the smallest value that enough of the values do not exceed."""
    assert percentile(values, percent) == expected
    with pytest.raises(ValueError, match="no values"):
        percentile([], percent)


def test_a_ratio_is_free_of_what_the_reference_differs_from_itself() -> None:
    """A ratio MUST be the median over rounds, divided by upstream's own second block over its first."""
    # Upstream takes twice as long the second time; ours takes what upstream takes on average.
    rounds = ((1.0, 1.5, 2.0), (1.0, 1.5, 2.0), (1.0, 99.0, 2.0))
    level = Level(gym="nemo", sessions=16, episodes=8, rounds=dict.fromkeys(MEASURES, rounds))
    got = (level.ratio("wall"), level.ours("wall"), level.upstream("wall"))
    assert got == (0.5, 1.5, 1.5), explain(
        subject="ratio, our median and upstream's",
        expected=(0.5, 1.5, 1.5),
        got=got,
        cause="one slow round decides, or the A/A ratio is left out",
    )


def test_the_same_measurements_are_drawn_as_the_same_bytes(committed: Throughput) -> None:
    """Drawn twice, a plot MUST be the same bytes, and hold no date."""
    first, second = throughput_drawing.plot(committed), throughput_drawing.plot(committed)
    assert (first == second, b"<dc:date>" in first) == (True, False), "ids or dates differ from drawing to drawing"


def test_the_committed_table_and_plot_follow_from_their_measurements(committed: Throughput) -> None:
    """Table and plot MUST be what is drawn from the committed measurements; notes may follow the table."""
    told = (COMMITTED / throughput_drawing.TABLE).read_text(encoding="utf-8")
    drawn = (COMMITTED / throughput_drawing.PLOT).read_bytes()
    got = (told.startswith(throughput_drawing.table(committed)), drawn == throughput_drawing.plot(committed))
    assert got == (True, True), explain(
        subject="whether table and plot in reports/sample/throughput are those of its measurements",
        expected=(True, True),
        got=got,
        cause="one of them was edited, or another version draws otherwise; run gymqual bench throughput",
    )


def test_the_committed_measurements_are_whole_and_miss_only_the_goal_that_is_named(committed: Throughput) -> None:
    """Both gyms MUST be there with every number of sessions; what misses its goal MUST be what README says, no less."""
    levels = [(level.gym, level.sessions) for level in committed.levels]
    missed = [figure.name for figure in figures(committed) if not figure.met]
    due = [(gym, sessions) for gym in ("nemo", "openenv") for sessions in EPISODES]
    assert (levels, missed) == (due, NAMED), explain(
        subject="levels that were measured; figures that miss their goals",
        expected=(due, NAMED),
        got=(levels, missed),
        cause="the run was cut, a layer has become slower, or a goal is met again: name it in README and here",
    )


@pytest.mark.parametrize(
    ("gym", "sides"),
    [
        pytest.param("nemo", nemo_sides, marks=pytest.mark.gym("nemo")),
        pytest.param("openenv", openenv_sides, marks=pytest.mark.gym("openenv")),
    ],
)
def test_both_sides_carry_a_load(
    gym: str, sides: Callable[..., AbstractContextManager[tuple[Side, Side, str]]], run: Run, tmp_path: Path
) -> None:
    """Our client and upstream's MUST play every episode of a load to its end on the real servers."""
    calls: list[float] = []
    with owned() as (_, owner), sides(run.stack(gym), run.subject, owner, tmp_path) as (ours, upstream, _):
        for side in (ours, upstream):
            calls.append(side.play(3, 12)["calls"])
            block = side.block(3, 12)
            assert sorted(block) == sorted(MEASURES), "a block lacks a measure"
    assert calls == [12 * TOOL_CALLS] * 2, explain(
        subject="tool calls that were made, ours and upstream's",
        expected=[12 * TOOL_CALLS] * 2,
        got=calls,
        cause="the two sides play episodes of different length",
    )
