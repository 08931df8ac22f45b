"""What a pytest item says of itself, and what the plugin's modules keep beside items and configuration."""

from typing import Any

import pytest

from harness.checks import Check, Planted
from harness.evidence import Evidence
from harness.run import Run
from harness.stacks import STACKS

RUN = pytest.StashKey[Run]()
"""Of a configuration: the run of this process; absent where the plugin is passive."""
EVIDENCE = pytest.StashKey[Evidence]()
"""Of an item: what its check has shown, once it asked for the fixture."""


def check_of(function: object) -> Check | None:
    """Return the documented check whose body a test function is."""
    return getattr(function, "gymqual_check", None)


def check_in(item: pytest.Item) -> Check | None:
    """Return the documented check that an item runs."""
    return check_of(getattr(item, "function", None))


def gym_of(item: pytest.Item) -> str | None:
    """Return the gym that an item's mark names."""
    marker = item.get_closest_marker("gym")
    return marker.args[0] if marker else None


def planted_in(item: pytest.Item) -> Planted | None:
    """Return the defect that an item runs under, in a run with ``--broken``."""
    callspec: Any = getattr(item, "callspec", None)
    planted = callspec.params.get("defect") if callspec else None
    return planted if isinstance(planted, Planted) else None


def selected_gyms(config: pytest.Config) -> list[str]:
    """Return the gyms that ``--gym`` names: all of them without it."""
    chosen = config.option.gym
    return list(STACKS) if not chosen or "all" in chosen else [gym for gym in STACKS if gym in chosen]
