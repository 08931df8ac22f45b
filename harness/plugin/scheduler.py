"""Scheduling of parallel runs: one worker per gym, because a gym's checks share its server, and one per other file.

pytest-xdist 3.8.0 appends ``xdist_group`` names to an attribute that pytest 9.2 no longer reads, so that its
own ``--dist loadgroup`` spreads a group over all workers without a word. This scheduler takes its place.
"""

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from gymqual.harness.stacks.specs import STACKS

LONGEST = (
    "test_scenarios.py::verifiers",
    "openenv",
    "test_parity.py::verifiers",
    "test_optional.py::verifiers",
    "test_audit.py",
    "nemo",
    "test_matched_experiment.py",
    "test_generation.py",
    "test_resume.py",
    "test_policy.py",
    "test_page.py",
    "test_replay_audit.py",
    "test_several_processes.py",
    "test_schedule.py",
)
"""Scopes by what they were measured to take, the longest first: one that began last would be waited for alone."""


class GymScheduling(LoadScopeScheduling):
    """Keep what belongs to one gym on one worker; every other file, which shares fixtures, goes where there is room."""

    def _assign_work_unit(self, node: Any) -> None:
        long = [name for name in LONGEST for scope in self.workqueue if scope.rpartition("/")[2] == name]
        if long:
            first = next(scope for scope in self.workqueue if scope.rpartition("/")[2] == long[0])
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        gym, file = gym_of(nodeid), nodeid.partition("::")[0]
        # Upstream starts what Verifiers needs anew for every run: its checks share no server.
        return f"{file}::{gym}" if gym == "verifiers" else gym or file


def gym_of(nodeid: str) -> str | None:
    """Return the gym a node id names, by a folder (``nemo/test_service.py``) or a parameter (``[nemo-mini]``)."""
    path, _, name = nodeid.partition("::")
    words = {*path.split("/"), *re.split(r"[\[\]-]", name)}
    return next((gym for gym in STACKS if gym in words), None)
