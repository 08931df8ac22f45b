"""Parity: the same episode is the same bytes and the same verdict, whichever gym carries it.

Every gym is held to the core's own replay, and so to every other gym. The observations are read off the wire.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import Planted, check, explain
from gymqual.harness.plugin.run import Run
from gymqual.qualification.broken import clients
from gymqual.qualification.support.parity import (
    Carrier,
    Episode,
    VerifiersCarrier,
    carrier,
    carries,
    malformed_episodes,
    number_episodes,
    replayed,
    scripted_episodes,
)

pytestmark = pytest.mark.cpu_smoke

EVERY_GYM = pytest.mark.parametrize(
    "carried",
    [pytest.param(gym, marks=pytest.mark.gym(gym)) for gym in ("nemo", "openenv", "verifiers")],
    indirect=True,
)


@pytest.fixture(scope="module")
def carried(request: pytest.FixtureRequest, run: Run) -> Iterator[Carrier | VerifiersCarrier]:
    """A gym's real service and client."""
    with carrier(request.param, run) as opened:
        yield opened


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Planted | None:
    """The defect planted for this test: a patch of the clients."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is not None:
        clients.DEFECTS[planted.defect](monkeypatch)
    return planted


@EVERY_GYM
@check("PARITY-01", broken="calls_of_a_turn_change_places")
def test_scripted_episodes_are_equal_in_every_gym(
    carried: Carrier | VerifiersCarrier, orders: GermanOrders, evidence: Evidence
) -> None:
    """Scripted episodes MUST give the core's observations, byte for byte on the wire, and the core's verdict."""
    seen, expected = _compare(carried, orders, scripted_episodes(orders), evidence)
    assert seen == expected, explain(
        subject=f"scripted episodes through {carried.gym_name}: what the client told and what crossed the wire",
        expected=expected,
        got=seen,
        cause="the gym changes, reorders or drops what the core shows",
    )


@EVERY_GYM
@check("PARITY-02", broken="arguments_are_written_anew")
def test_malformed_calls_are_equal_in_every_gym(
    carried: Carrier | VerifiersCarrier, orders: GermanOrders, evidence: Evidence
) -> None:
    """Malformed and hostile calls MUST give the core's error observations, and the same episodes' verdicts."""
    seen, expected = _compare(carried, orders, malformed_episodes(orders), evidence)
    assert seen == expected, explain(
        subject=f"malformed calls through {carried.gym_name}: what the client told and what crossed the wire",
        expected=expected,
        got=seen,
        cause="somebody on the way parses what the model wrote",
    )


@EVERY_GYM
@check("PARITY-03", broken="numbers_are_normalised")
def test_number_forms_are_equal_in_every_gym(
    carried: Carrier | VerifiersCarrier, orders: GermanOrders, evidence: Evidence
) -> None:
    """Every German number form and hostile expression MUST be read as the core reads it, in calls and in answers."""
    seen, expected = _compare(carried, orders, number_episodes(orders), evidence)
    assert seen == expected, explain(
        subject=f"number forms through {carried.gym_name}: what the client told and what crossed the wire",
        expected=expected,
        got=seen,
        cause="a number is converted on the way",
    )


def _compare(
    carried: Carrier | VerifiersCarrier, orders: GermanOrders, episodes: list[Episode], evidence: Evidence
) -> tuple[Any, Any]:
    """Return what differs from the replay, and what must: nothing, with the number of episodes and observations."""
    left_out = [each.name for each in episodes if not carries(carried.gym_name, each)]
    episodes = [each for each in episodes if carries(carried.gym_name, each)]
    told, wire = carried.play(orders, episodes)
    replays = replayed(orders, episodes)
    shown = [(seen.text.encode(), seen.is_error) for replay in replays for seen in replay.observations]
    differing = [each.name for each, got, due in zip(episodes, told, replays, strict=True) if got != due]
    evidence.attach("wire.json", [[text.decode(), is_error] for text, is_error in wire])
    evidence.measure(left_out=left_out)
    evidence.measure(episodes=len(episodes), observations=len(wire), outcomes=sorted({t.verdict.outcome for t in told}))
    return (differing[:5], _first_difference(wire, shown), len(wire)), ([], None, len(shown))


def _first_difference(wire: list[Any], shown: list[Any]) -> Any:
    pairs = zip(wire, shown, strict=False)
    return next(((number, *map(str, pair)) for number, pair in enumerate(pairs) if pair[0] != pair[1]), None)
