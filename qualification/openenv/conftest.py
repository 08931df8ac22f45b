"""Fixtures of the OpenEnv checks."""

from gymqual.qualification.fixtures.openenv import *  # noqa: F403
