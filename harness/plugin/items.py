"""What a pytest item says of itself, and what the plugin's modules keep beside items and configuration."""

import re
from typing import Any

import pytest

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import Check, Planted
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.errors import NotTestable
from gymqual.harness.stacks.specs import STACKS

RUN = pytest.StashKey[Run]()
"""Of a configuration: the run of this process; absent where the plugin is passive."""
EVIDENCE = pytest.StashKey[Evidence]()
"""Of an item: what its check has shown, once it asked for the fixture."""


def require_run(config: pytest.Config) -> Run:
    """Return the run of this process; raises NotTestable where no folder is named that it could be made in."""
    if RUN not in config.stash:
        raise NotTestable("checks leave evidence; name a folder for it with --gymqual-reports DIR")
    return config.stash[RUN]


def evidence_of(item: pytest.Item, run: Run) -> Evidence:
    """Return the evidence of a check, in a folder named by its id and, where it has parameters, by its case."""
    check = check_in(item)
    # The parameters in a test's id tell its cases apart.
    case = re.sub(r"[^\w.-]+", "-", item.name.partition("[")[2]).strip("-")
    name = f"{check.id}/{case}" if check and case else check.id if check else re.sub(r"[^\w.-]+", "-", item.name)
    return item.stash.setdefault(EVIDENCE, Evidence(run.folder, name))


def check_of(function: object) -> Check | None:
    """Return the documented check whose body a test function is."""
    return getattr(function, "gymqual_check", None)


def check_in(item: pytest.Item) -> Check | None:
    """Return the documented check that an item runs."""
    return check_of(getattr(item, "function", None))


def gym_of(item: pytest.Item) -> str | None:
    """Return the gym that an item's mark names."""
    marker = item.get_closest_marker("gymqual_gym")
    return marker.args[0] if marker else None


def planted_in(item: pytest.Item) -> Planted | None:
    """Return the defect that an item runs under, in a run with ``--broken``."""
    callspec: Any = getattr(item, "callspec", None)
    planted = callspec.params.get("defect") if callspec else None
    return planted if isinstance(planted, Planted) else None


def selected_gyms(config: pytest.Config) -> list[str]:
    """Return the gyms that ``--gym`` names: all of them without it."""
    chosen = config.option.gymqual_gym
    return list(STACKS) if not chosen or "all" in chosen else [gym for gym in STACKS if gym in chosen]
