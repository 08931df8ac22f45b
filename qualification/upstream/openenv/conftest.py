"""The fixtures of the OpenEnv checks, for upstream's own tools."""

from gymqual.qualification.fixtures.openenv import *  # noqa: F403
