"""Scheduling of parallel runs: one worker per gym, because a gym's checks share its server, and one per other file.

pytest-xdist 3.8.0 appends ``xdist_group`` names to an attribute that pytest 9.2 no longer reads, so that its
own ``--dist loadgroup`` spreads a group over all workers without a word. This scheduler takes its place.
"""

import re

from xdist.scheduler import LoadScopeScheduling

from gymqual.harness.stacks.environments import STACKS


class GymScheduling(LoadScopeScheduling):
    """Keep what belongs to one gym on one worker; every other file, which shares fixtures, goes where there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return gym_of(nodeid) or nodeid.partition("::")[0]


def gym_of(nodeid: str) -> str | None:
    """Return the gym a node id names, by a folder (``nemo/test_service.py``) or a parameter (``[nemo-mini]``)."""
    path, _, name = nodeid.partition("::")
    words = {*path.split("/"), *re.split(r"[\[\]-]", name)}
    return next((gym for gym in STACKS if gym in words), None)
